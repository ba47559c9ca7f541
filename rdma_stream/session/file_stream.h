// The chunks of one file at the source: their order, the chunks in flight, and the file's digest.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "buffer_pool/buffer_pool.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// The first error of a checkpoint, shared by all its files. Later errors are ignored. Threads: any.
class StickyError {
 public:
  void set(Error error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Returns the error if there is one, else success.
  Status status() const {
    if (!failed()) return {};
    MutexLock lock(mutex_);
    return failure(*error_);
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  std::optional<Error> error_ PPMR_GUARDED_BY(mutex_);
};

// Returns true when a caller that waits for the target must stop waiting, for example because it
// was killed. Called every kInterruptCheck; an empty function never interrupts.
using Interrupted = std::function<bool()>;
inline constexpr std::chrono::milliseconds kInterruptCheck{50};
Error interruption();

class FileStream;

// A range of a file, in a slot. FileStream::cut() creates it, Outlet::announce() consumes it.
struct Chunk {
  std::shared_ptr<FileStream> file;
  SlotLease lease;
  uint32_t slot_offset = 0;  // where the chunk's bytes begin in the slot's payload
  uint32_t length = 0;
  uint64_t offset = 0;  // offset in the file
  // Its maker ensures that it overlaps no bytes in flight, so it does not wait for them.
  bool apart = false;
  uint64_t turn = 0;  // the file announces its chunks in the order of their turns
  // The length in the slot after packing; less than `length` if the chunk was compressed.
  uint32_t slot_length = 0;
  wire::Compression compression = wire::Compression::kNone;
};

// Chunks in flight land in any order, but where two writes overlap the later bytes must win. So
// chunks in flight never overlap: a chunk that overlaps one of them waits until the file has no
// chunk in flight. A chunk that its maker marks as `apart` does not wait: the ranges in flight are
// recorded coarsely, and chunks at scattered offsets of a file would wait without need.
//
// Threads: any. Each chunk has a reference to its FileStream.
class FileStream : public std::enable_shared_from_this<FileStream> {
 public:
  FileStream(uint64_t node, std::shared_ptr<StickyError> checkpoint_error)
      : node_(node), checkpoint_error_(std::move(checkpoint_error)) {}

  uint64_t node() const { return node_; }

  // Creates a chunk, which counts as unfinished from now on. The caller must serialise the calls
  // for one file.
  Chunk cut(SlotLease lease, uint32_t slot_offset, uint32_t length, uint64_t offset);

  // Blocks until the target has verified every chunk that was cut before this call. Later chunks do
  // not delay it. Errors: the error of the checkpoint; EINTR when `interrupted` returns true.
  // drain() calls `interrupted` while it holds the FileStream's lock.
  Status drain(const Interrupted& interrupted) const;

  // Blocks until every chunk that was cut before this call is announced, so a message that is sent
  // now follows all of them. The wait is short, unless a chunk overlaps bytes in flight. The wait
  // ends when the session fails.
  void await_announced() const;

  // The outlet calls this. Calls `announce` for the chunks of the file one at a time, in the order
  // in which they were cut. If an earlier chunk is not announced yet, stores this chunk and
  // returns. The thread that announces the earlier chunk then also announces this one. That thread
  // blocks while its next chunk overlaps bytes in flight.
  using Announce = std::function<void(Chunk chunk, const wire::ChunkCheck& check)>;
  void announce_in_turn(Chunk chunk, const wire::ChunkCheck& check, const Announce& announce);
  // The outlet calls one of these functions when the chunk whose Chunk::turn is `turn` is verified
  // or has failed.
  void verified(uint64_t turn, uint64_t chunk_digest);
  void failed(uint64_t turn, Error error);

  uint64_t digest() const;
  // The source and the target both restart the file's digest after a truncation or a punched hole.
  void reset_digest();
  const std::shared_ptr<StickyError>& checkpoint_error() const { return checkpoint_error_; }

 private:
  // A call of drain() that waits; it lives on the stack of its thread.
  struct Drain {
    uint64_t end = 0;   // the call waits for all chunks with a turn before `end`
    uint64_t left = 0;  // number of unfinished chunks among these
    Drain* next = nullptr;
  };
  struct Early {
    Chunk chunk;
    wire::ChunkCheck check;
  };
  // The ranges of the file that are in flight: a chunk that overlaps one of them waits. Their
  // number is fixed, so that a chunk needs no allocation. Sequential chunks share one range. When
  // no range is free, the last range is extended to the new chunk; a chunk in the gap then waits
  // without need.
  class RangesInFlight {
   public:
    void clear() { count_ = 0; }
    void add(uint64_t begin, uint64_t end);
    bool overlaps(uint64_t begin, uint64_t end) const;

   private:
    struct Range {
      uint64_t begin = 0;
      uint64_t end = 0;
    };
    std::array<Range, 8> ranges_;
    size_t count_ = 0;
  };
  bool take_next_locked(Early& next) PPMR_REQUIRES(mutex_);
  void done_locked(uint64_t turn) PPMR_REQUIRES(mutex_);

  const uint64_t node_;
  const std::shared_ptr<StickyError> checkpoint_error_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  uint64_t turns_cut_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t turns_announced_ PPMR_GUARDED_BY(mutex_) = 0;
  // A thread is announcing; the same thread announces the next turns.
  bool announcing_ PPMR_GUARDED_BY(mutex_) = false;
  std::vector<Early> early_ PPMR_GUARDED_BY(mutex_);  // at most one per slot
  // Number of finished turns; turns finish in any order.
  uint64_t turns_done_ PPMR_GUARDED_BY(mutex_) = 0;
  RangesInFlight in_flight_
      PPMR_GUARDED_BY(mutex_);  // covers all ranges in flight, and possibly more
  mutable Drain* drains_ PPMR_GUARDED_BY(mutex_) = nullptr;
  mutable size_t await_announced_calls_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t digest_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
