// What the receiver half of the stream asks of the place where images land. The target mount's
// image store implements it; tests have a plain one in memory.
//
// Nodes are named by (session, node id): ids are the source's and unique in its session only.
//
// Threads: the calls of one session that change names come from one thread, in the order in which
// the source made them. reserve/land/abandon come from any of the receiver's threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "buffer_pool/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

using SessionId = uint64_t;  // the receiver's number for a session, never used again

struct NodeKey {
  SessionId session = 0;
  uint64_t node = 0;
  bool operator==(const NodeKey&) const = default;
};

// Memory for one chunk, at the final place of its bytes where there is memory for them. Fixed size,
// kept in the receiver's table: no allocation per chunk.
struct Landing {
  static constexpr size_t kPiecesMax = 16;
  struct Piece {
    std::byte* data = nullptr;
    uint32_t length = 0;
    uint32_t region = 0;  // which of the store's registered regions `data` lies in
    uint32_t block = 0;   // the store's own
  };
  NodeKey file;
  uint64_t offset = 0;
  uint32_t length = 0;
  std::array<Piece, kPiecesMax> pieces;
  uint32_t piece_count = 0;
  uint64_t store_data = 0;  // the store's own
};

class Sink {
 public:
  virtual ~Sink() = default;

  virtual void session_opened(SessionId session, const std::string& source_name) = 0;
  // The source is gone for good: its unsealed checkpoints fail with `reason`, sealed ones stay. No
  // call names the session afterwards except land/abandon for landings still under way.
  virtual void session_ended(SessionId session, const std::string& reason) = 0;

  // Names and attributes, in order. An error fails the checkpoint concerned, not the session; for
  // claim and rename it is what the source gets.
  virtual Status claim(SessionId session, const wire::Claim& message) = 0;
  virtual Status make(SessionId session, const wire::Make& message) = 0;
  virtual Status remove(SessionId session, const wire::Remove& message) = 0;
  virtual Status rename(SessionId session, const wire::Rename& message) = 0;
  virtual Status set_attributes(SessionId session, const wire::SetAttributes& message) = 0;
  virtual Status truncate(SessionId session, const wire::Truncate& message) = 0;
  virtual Status punch_hole(SessionId session, const wire::PunchHole& message) = 0;
  virtual Status opened_for_write(SessionId session, const wire::OpenedForWrite& message) = 0;
  virtual Status closed(SessionId session, const wire::Closed& message) = 0;
  virtual Status forget(SessionId session, const wire::Forget& message) = 0;

  // Bytes.
  // A chunk was announced: until it lands (or is abandoned) readers of that range wait for it.
  virtual Status announced(NodeKey file, uint64_t offset, uint32_t length) = 0;
  // Memory for an announced chunk. Errors: EAGAIN when there is none now but some will be freed
  // (Receiver::space_freed() is called then), ENOSPC when there is none, ENOENT for an unknown
  // file.
  virtual Result<Landing> reserve(NodeKey file, uint64_t offset, uint32_t length) = 0;
  // The bytes are in the landing's memory and were verified: readers may have them. Errors: ENOSPC
  // (the spill disk is full), EIO.
  virtual Status land(const Landing& landing, uint64_t chunk_digest) = 0;
  // The announced chunk will not come: its memory is free again. The file has failed.
  virtual void abandon(const Landing& landing, const Error& error) = 0;
  virtual void abandon_announced(NodeKey file, uint64_t offset, uint32_t length,
                                 const Error& error) = 0;
  // For the source reading back: as many bytes as there are up to the end of the file.
  virtual Result<size_t> read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) = 0;

  // Checkpoints.
  virtual Status manifest_entry(SessionId session, const wire::ManifestEntry& message) = 0;
  virtual Status seal(SessionId session, const wire::Seal& message) = 0;
  virtual Status abandon_checkpoint(SessionId session, const wire::Abandon& message) = 0;
  virtual Status seal_refused(SessionId session, const wire::SealRefused& message) = 0;

  virtual wire::Space space() const = 0;
};

}  // namespace ppmr
