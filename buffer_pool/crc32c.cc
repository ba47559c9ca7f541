#include "buffer_pool/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstring>

namespace ppmr {
namespace {

static_assert(std::endian::native == std::endian::little);

bool has_instruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
#else
  return true;  // ISA-L has others of its own
#endif
}

// Fast with the instruction, else byte by byte.
uint32_t crc32c_by_isal(std::span<const std::byte> bytes, uint32_t previous) {
  // ISA-L leaves the initial and final inversion to its caller and counts in int.
  uint32_t register_value = ~previous;
  while (!bytes.empty()) {
    const size_t length = std::min<size_t>(bytes.size(), INT_MAX);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    register_value = crc32_iscsi(data, static_cast<int>(length), register_value);
    bytes = bytes.subspan(length);
  }
  return ~register_value;
}

uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Takes words off the front of a message without changing its checksum: adds the multiple
// x^209 + x^144 + x^54 + x^39 + x^14 + 1 of the polynomial, so that its first term meets each bit
// of the word and the others move it on by 65, 155, 170, 195 and 209 bits. It was found by trying
// all; with fewer terms there is none below x^5000. The idea is S. Russell's ("Chorba: A novel
// CRC32 implementation", arXiv:2412.16398).
struct Folding {
  std::array<uint64_t, 4> carry{};  // [i]: to be added to the word i places on

  void take(uint64_t word) {
    word ^= carry[0];
    carry = {
        carry[1] ^ word << 1,
        carry[2] ^ word >> 63 ^ word << 27 ^ word << 42,
        carry[3] ^ word >> 37 ^ word >> 22 ^ word << 3 ^ word << 17,
        word >> 61 ^ word >> 47,
    };
  }
};

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  return has_instruction() ? crc32c_by_isal(bytes, previous) : crc32c_by_folding(bytes, previous);
}

uint32_t crc32c_by_folding(std::span<const std::byte> bytes, uint32_t previous) {
  constexpr size_t kWordBytes = sizeof(uint64_t);
  constexpr size_t kCarryBytes = sizeof(Folding::carry);
  if (bytes.size() < 2 * kCarryBytes) return crc32c_by_isal(bytes, previous);

  Folding folding{.carry = {static_cast<uint32_t>(~previous)}};
  for (; bytes.size() >= kCarryBytes + kWordBytes; bytes = bytes.subspan(kWordBytes)) {
    folding.take(word_at(bytes.data()));
  }
  std::array<std::byte, kCarryBytes + kWordBytes> rest;
  std::ranges::copy(bytes, rest.begin());
  for (size_t i = 0; i < folding.carry.size(); ++i) {
    const uint64_t word = word_at(&rest[i * kWordBytes]) ^ folding.carry[i];
    std::memcpy(&rest[i * kWordBytes], &word, kWordBytes);
  }
  // With a register of zeros: the ones it begins with, or what was before, is in `rest`.
  return crc32c_by_isal(std::span(rest).first(bytes.size()), UINT32_MAX);
}

}  // namespace ppmr
