#include "rdma_stream/wire/wire.h"

#include "base/crc32c.h"

namespace ppmr::wire {

uint64_t chunk_digest(uint64_t offset, uint32_t length, const ChunkCheck& check) {
  // The finaliser of splitmix64 (Steele, Lea, Flood 2014), applied to offset, length and half of
  // the code. Every input bit affects all output bits, so errors of two chunks do not cancel out in
  // the sum.
  auto mix = [](uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  };
  constexpr uint64_t kGap = 0x9e3779b97f4a7c15u;
  uint64_t code = 0;
  for (size_t i = 0; i < sizeof code; ++i) code |= uint64_t{check.code[i]} << (8 * i);
  return mix(mix(mix(offset + kGap) ^ length) ^ (code + kGap));
}

template <typename Message>
uint32_t fields_crc(Message message) {
  std::array<std::byte, 64> bytes;
  Writer writer(bytes);
  writer(message);
  return crc32c(std::span(bytes).first(writer.written_bytes() - sizeof message.crc));
}

template uint32_t fields_crc(FrameHeader);
template uint32_t fields_crc(ReadRequest);
template uint32_t fields_crc(ReadResponse);
template uint32_t fields_crc(AgentFrameHeader);

}  // namespace ppmr::wire
