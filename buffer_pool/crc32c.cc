#include "buffer_pool/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstring>

namespace ppmr {
namespace {

// Without the crc32 instruction (SSE4.2; emulated machines are told to do without, because they
// compute it bit by bit) ISA-L goes byte by byte. Sixteen bytes at a time are four times as fast:
// "slicing-by-16", after Kounavis and Berry, "A Systematic Approach to Building High Performance,
// Software-based, CRC Generators" (2005).
constexpr size_t kSlices = 16;
constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

using SliceTable = std::array<std::array<uint32_t, 256>, kSlices>;

// [i][b]: what byte b, with i bytes of zero behind it, does to the register.
constexpr SliceTable kTable = [] {
  SliceTable table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[0][byte] = value;
  }
  for (size_t i = 1; i < kSlices; ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = table[i - 1][byte];
      table[i][byte] = (before >> 8) ^ table[0][before & 0xff];
    }
  }
  return table;
}();

bool has_instruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
#else
  return true;  // left to ISA-L
#endif
}

// The eight bytes of `word`, of which the first is the one that is followed by first_slice others.
inline uint32_t slices(uint64_t word, size_t first_slice) {
  uint32_t value = 0;
  for (size_t i = 0; i < 8; ++i) value ^= kTable[first_slice - i][(word >> (8 * i)) & 0xff];
  return value;
}

uint32_t update_by_instruction(uint32_t value, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {  // ISA-L counts in int
    const size_t length = std::min<size_t>(bytes.size(), INT_MAX);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    value = crc32_iscsi(data, static_cast<int>(length), value);
    bytes = bytes.subspan(length);
  }
  return value;
}

uint32_t update_by_table(uint32_t value, std::span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little);
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    std::array<uint64_t, 2> words;
    std::memcpy(words.data(), bytes.data(), sizeof words);
    value = slices(words[0] ^ value, 15) ^ slices(words[1], 7);
  }
  for (const std::byte byte : bytes) {
    value = (value >> 8) ^ kTable[0][(value ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return value;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  return has_instruction() ? ~update_by_instruction(~previous, bytes)
                           : crc32c_by_table(bytes, previous);
}

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t previous) {
  return ~update_by_table(~previous, bytes);
}

}  // namespace ppmr
