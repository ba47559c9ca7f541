// The bytes on the wire; docs/protocol.md is the reference. Each message is a struct whose `fields`
// lists its members once, for encoding and for decoding.
//
// A decoder checks every length against the bytes left. The code that uses a message validates its
// values (node ids, slots, names).
#pragma once

#include "rdma_stream/wire/wire_codec.h"
#include "rdma_stream/wire/wire_control.h"
#include "rdma_stream/wire/wire_data.h"
#include "rdma_stream/wire/wire_handshake.h"

namespace ppmr::wire {

// Agent connections: one JSON object per frame.
struct AgentFrameHeader {  // the body follows
  uint32_t body_length = 0;
  uint32_t body_crc = 0;
  uint32_t crc = 0;  // CRC32C of the fields above
  template <typename F>
  void fields(F&& field) {
    field(body_length), field(body_crc), field(crc);
  }
};
inline constexpr size_t kAgentFrameHeaderBytes = 12;

// Returns the value of one chunk in the digest of its file. The digest is the sum over all chunks
// of the file. The sum does not depend on the order in which chunks land. It changes when a chunk
// is lost, duplicated or lands at a wrong offset. It covers the chunk's bytes by their check: the
// tag of an encrypted chunk, which is unique to this encryption of these bytes, or the CRC32C.
uint64_t chunk_digest(uint64_t offset, uint32_t length, const ChunkCheck& check);

// Returns the checksum of all fields before `crc`, which is the last field. `Message` is
// FrameHeader, ReadRequest, ReadResponse or AgentFrameHeader.
template <typename Message>
uint32_t fields_crc(Message message);

}  // namespace ppmr::wire
