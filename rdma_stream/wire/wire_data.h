// The connections that carry payload: the hello of an RDMA connection, and the equivalent of an
// RDMA READ over TCP.
#pragma once

#include <array>
#include <cstdint>

#include "rdma_stream/wire/wire_handshake.h"

namespace ppmr::wire {

// The first bytes of the private data of an RDMA connection request. InfiniBand has room for 92
// bytes of private data there. The header with the IP addresses takes 36 bytes, so 56 bytes are
// left.
struct RdmaHello {
  std::array<char, 4> magic = kMagic;
  uint16_t version = kVersion;
  uint16_t stream = 0;   // a later connection of the same stream replaces an earlier one
  uint64_t attempt = 0;  // 1, 2, 3 ... per stream; the source accepts a number once
  Proof proof{};         // computed with the secret of the offer: session_proof.h
  template <typename F>
  void fields(F&& field) {
    field(magic), field(version), field(stream), field(attempt), field(proof);
  }
};
inline constexpr size_t kRdmaHelloBytes = 48;

struct ReadRequest {  // target -> source
  uint32_t id = 0;    // chosen by the target; the answer repeats it
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t length = 0;
  uint32_t crc = 0;  // CRC32C of the fields above
  template <typename F>
  void fields(F&& field) {
    field(id), field(slot), field(generation), field(slot_offset), field(length), field(crc);
  }
};

struct ReadResponse {  // source -> target; `length` bytes follow
  uint32_t id = 0;
  uint32_t generation = 0;
  uint32_t length = 0;
  uint32_t crc = 0;  // CRC32C of the fields above; the announcement has the check of the payload
  template <typename F>
  void fields(F&& field) {
    field(id), field(generation), field(length), field(crc);
  }
};
inline constexpr size_t kReadRequestBytes = 24;
inline constexpr size_t kReadResponseBytes = 16;

}  // namespace ppmr::wire
