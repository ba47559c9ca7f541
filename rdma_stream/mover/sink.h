// The functions that the receiver requires of the image store. The target mount implements them;
// tests use MemorySink.
//
// A node is identified by (session, node id). The source chooses the id, which is unique only in
// its session.
//
// Threads: in each session, one thread at a time makes the calls that change names, in the order in
// which the source sent the changes. Any thread of the receiver calls reserve, land and abandon.
// Exceptions: a call that throws ends the session.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

using SessionId = uint64_t;  // assigned by the receiver, never reused

struct NodeKey {
  SessionId session = 0;
  uint64_t node = 0;
  bool operator==(const NodeKey&) const = default;
};

// Describes the memory for one chunk: the final place of its bytes, or bounce memory for bytes that
// are spilled. The struct has a fixed size and is stored in the receiver's slot table, so that no
// chunk needs an allocation.
struct Landing {
  static constexpr size_t kPiecesMax = 16;
  struct Piece {
    std::byte* data = nullptr;
    uint32_t length = 0;
    uint32_t region = 0;  // the registered region of the store that contains `data`
    uint32_t block = 0;   // opaque, for the store
  };
  NodeKey file;
  uint64_t offset = 0;
  uint32_t length = 0;
  std::array<Piece, kPiecesMax> pieces;
  uint32_t piece_count = 0;
  uint64_t store_data = 0;  // opaque, for the store
};

class Sink {
 public:
  virtual ~Sink() = default;

  // `owner` is PeerIdentity::owner(). It owns the session's checkpoints, even after the end of the
  // session.
  virtual void session_opened(SessionId session, const std::string& source_name,
                              const std::string& owner) = 0;
  // The session's unsealed checkpoints fail with `reason`, sealed ones stay. This is the last call
  // for this session.
  virtual void session_ended(SessionId session, const std::string& reason) = 0;

  // The calls for names and attributes come in the order in which the source sent the changes. An
  // error fails the checkpoint, not the session. The source receives the errors of claim and
  // rename.
  virtual Status claim(SessionId session, const wire::Claim& message) = 0;
  virtual Status make(SessionId session, const wire::Make& message) = 0;
  virtual Status remove(SessionId session, const wire::Remove& message) = 0;
  virtual Status rename(SessionId session, const wire::Rename& message) = 0;
  virtual Status set_attributes(SessionId session, const wire::SetAttributes& message) = 0;
  virtual Status truncate(SessionId session, const wire::Truncate& message) = 0;
  virtual Status punch_hole(SessionId session, const wire::PunchHole& message) = 0;
  virtual Status zeros(SessionId session, const wire::Zeros& message) = 0;
  virtual Status opened_for_write(SessionId session, const wire::OpenedForWrite& message) = 0;
  virtual Status closed(SessionId session, const wire::Closed& message) = 0;
  virtual Status forget(SessionId session, const wire::Forget& message) = 0;

  // The calls for bytes. Chunks in flight do not overlap. If a faulty source announces overlapping
  // chunks, the contents of the common bytes are undefined.
  //
  // announced(): from now on readers of the chunk's range wait until the chunk lands or is
  // abandoned.
  virtual Status announced(NodeKey file, uint64_t offset, uint32_t length) = 0;
  // Returns memory for an announced chunk. Errors: EAGAIN when there is none now, but some will
  // become free (the sink then calls Receiver::space_freed()); ENOSPC when there is none and the
  // chunk must not wait for memory; ENOENT for an unknown file.
  virtual Result<Landing> reserve(NodeKey file, uint64_t offset, uint32_t length) = 0;
  // Called when the verified bytes are in the landing's memory; from now on readers may get them.
  // Ends the landing, even on error. Errors: ENOSPC (the spill disk is full), EIO.
  virtual Status land(const Landing& landing, uint64_t chunk_digest) = 0;
  // Called when the announced chunk will not arrive. Frees the chunk's memory. The file has failed.
  virtual void abandon(const Landing& landing, const Error& error) = 0;
  virtual void abandon_announced(NodeKey file, uint64_t offset, uint32_t length,
                                 const Error& error) = 0;
  // Serves a read back: reads `bytes.size()` bytes, or fewer at the end of the file.
  virtual Result<size_t> read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) = 0;

  // Checkpoints.
  virtual Status manifest_entry(SessionId session, const wire::ManifestEntry& message) = 0;
  virtual Status seal(SessionId session, const wire::Seal& message) = 0;
  virtual Status abandon_checkpoint(SessionId session, const wire::Abandon& message) = 0;
  virtual Status seal_refused(SessionId session, const wire::SealRefused& message) = 0;

  virtual wire::Space space() const = 0;
};

}  // namespace ppmr
