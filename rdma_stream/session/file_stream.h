// The chunks of one file at the source: their order, which of them are in flight, and the file's
// digest.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "buffer_pool/result.h"

namespace ppmr {

// The first error of a checkpoint, which is final. Shared by all its files. Threads: any.
class StickyError {
 public:
  void set(Error error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // The error, if there is one.
  Status status() const {
    if (!failed()) return {};
    std::lock_guard lock(mutex_);
    return failure(*error_);
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_
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
  uint32_t slot_offset = 0;  // of the bytes in the slot's payload
  uint32_t length = 0;
  uint64_t offset = 0;  // in the file
  uint64_t turn = 0;    // chunks of a file are announced in the order in which they were cut
};

// Chunks in flight never overlap: their bytes land in any order, and the later bytes must win. A
// chunk that overlaps one in flight waits until the file has nothing in flight.
//
// Threads: any. Each chunk holds a reference.
class FileStream : public std::enable_shared_from_this<FileStream> {
 public:
  FileStream(uint64_t node, std::shared_ptr<StickyError> checkpoint_error)
      : node_(node), checkpoint_error_(std::move(checkpoint_error)) {}

  uint64_t node() const { return node_; }

  // The chunk counts as unfinished from now on. The caller must serialise the cuts of one file.
  Chunk cut(SlotLease lease, uint32_t slot_offset, uint32_t length, uint64_t offset);

  // Blocks until every chunk cut so far is verified at the target. Later chunks do not delay it.
  // Errors: the checkpoint's; EINTR when `interrupted` returns true (called with the stream's lock
  // held).
  Status drain(const Interrupted& interrupted) const;

  // For the outlet: calls `announce` for each chunk in its turn, one at a time. Leaves a chunk that
  // is early to the thread that announces the chunks before it. Blocks that thread while a chunk
  // overlaps bytes in flight.
  using Announce = std::function<void(Chunk chunk, uint32_t crc)>;
  void announce_in_turn(Chunk chunk, uint32_t crc, const Announce& announce);
  // For the outlet: the chunk with this turn is finished.
  void verified(uint64_t turn, uint64_t chunk_digest);
  void failed(uint64_t turn, Error error);

  uint64_t digest() const;
  // After a truncation or a hole both sides restart the digest.
  void reset_digest();
  const std::shared_ptr<StickyError>& checkpoint_error() const { return checkpoint_error_; }

 private:
  // A caller of drain(), on its stack.
  struct Drain {
    uint64_t end = 0;   // waits for the turns before `end`
    uint64_t left = 0;  // unfinished turns among them
    Drain* next = nullptr;
  };
  struct Early {
    Chunk chunk;
    uint32_t crc = 0;
  };
  // A fixed number of ranges that cover at least the bytes in flight, so that a chunk needs no
  // allocation. Sequential chunks share one range. When no range is free, the last one grows over a
  // gap, and a chunk in that gap waits although nothing there is in flight.
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
  bool take_next_locked(Early& next);
  void done_locked(uint64_t turn);

  const uint64_t node_;
  const std::shared_ptr<StickyError> checkpoint_error_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Guarded by mutex_.
  uint64_t turns_cut_ = 0;
  uint64_t turns_announced_ = 0;
  bool announcing_ = false;   // by one thread, which then continues with the next turn
  std::vector<Early> early_;  // at most one per slot
  uint64_t turns_done_ = 0;   // their number: chunks finish in any order
  RangesInFlight in_flight_;  // superset of the announced ranges that are not done
  mutable Drain* drains_ = nullptr;
  uint64_t digest_ = 0;
};

}  // namespace ppmr
