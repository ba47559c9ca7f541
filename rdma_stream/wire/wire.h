// The bytes on the wire. README.md documents them for people; here each message is a struct whose
// `fields` lists its members once, for writing and for reading alike.
//
// A decoder checks every length against what is left of the frame; what the values mean (node ids,
// slots, names) is checked by whoever acts on them.
#pragma once

#include "rdma_stream/wire/wire_codec.h"
#include "rdma_stream/wire/wire_control.h"
#include "rdma_stream/wire/wire_data.h"
#include "rdma_stream/wire/wire_handshake.h"

namespace ppmr::wire {

// Agent connections: one JSON object a frame.
struct AgentFrameHeader {  // the body follows
  uint32_t body_length = 0;
  uint32_t body_crc = 0;
  uint32_t crc = 0;  // of the fields above
  template <typename F>
  void fields(F&& field) {
    field(body_length), field(body_crc), field(crc);
  }
};
inline constexpr size_t kAgentFrameHeaderBytes = 12;

// One chunk's part of its file's digest. The sum over a file's chunks is the same in whatever order
// they land, and changes when one is lost, doubled or lands elsewhere.
uint64_t chunk_digest(uint64_t offset, uint32_t length, uint32_t crc);

// The checksum of a FrameHeader's, ReadRequest's, ReadResponse's or AgentFrameHeader's fields
// before `crc`, which is last.
template <typename Message>
uint32_t fields_crc(Message message);

}  // namespace ppmr::wire
