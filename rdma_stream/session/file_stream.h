// What the source knows of one file's chunks on their way to the target.
#pragma once

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

// The first thing that went wrong with a checkpoint; it stays wrong. Shared by all its files.
// Threads: any.
class StickyError {
 public:
  void set(Error error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // A value while all is well.
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

// Whether a caller that waits for the target shall wait no longer: it was killed, for one. Asked
// every kInterruptCheck; an empty one never interrupts.
using Interrupted = std::function<bool()>;
inline constexpr std::chrono::milliseconds kInterruptCheck{50};
Error interruption();

class FileStream;

// One run of bytes of a file, in a slot. Made by FileStream::cut(), used up by Outlet::announce().
struct Chunk {
  std::shared_ptr<FileStream> file;
  SlotLease lease;
  uint32_t slot_offset = 0;  // where in the slot's payload the bytes begin
  uint32_t length = 0;
  uint64_t offset = 0;  // in the file
  uint64_t turn = 0;    // announced in the order in which they were cut: later bytes win
};

// Threads: any. Lives as long as a chunk of it is under way.
class FileStream : public std::enable_shared_from_this<FileStream> {
 public:
  FileStream(uint64_t node, std::shared_ptr<StickyError> checkpoint_error)
      : node_(node), checkpoint_error_(std::move(checkpoint_error)) {}

  uint64_t node() const { return node_; }

  // The chunk counts as outstanding from here on. The caller orders the cuts of one file.
  Chunk cut(SlotLease lease, uint32_t slot_offset, uint32_t length, uint64_t offset);

  // Waits until every chunk cut so far has been verified at the target, however many are cut
  // meanwhile. Errors: the checkpoint's; EINTR when `interrupted` says so (it is asked with the
  // stream's lock held).
  Status drain(const Interrupted& interrupted) const;

  // For the outlet: calls `announce` for every chunk in its turn, one at a time. A chunk that is
  // early is left to whoever announces those before it: nobody waits.
  using Announce = std::function<void(Chunk chunk, uint32_t crc)>;
  void announce_in_turn(Chunk chunk, uint32_t crc, const Announce& announce);
  // For the outlet: the chunk is done.
  void verified(uint64_t turn, uint64_t chunk_digest);
  void failed(uint64_t turn, Error error);

  uint64_t digest() const;
  // After a truncation or a hole both sides begin to count again.
  void reset_digest();
  const std::shared_ptr<StickyError>& checkpoint_error() const { return checkpoint_error_; }

 private:
  // A caller of drain(), on its stack.
  struct Drain {
    uint64_t end = 0;   // waits for the turns before it
    uint64_t left = 0;  // so many of them are not done
    Drain* next = nullptr;
  };
  struct Early {
    Chunk chunk;
    uint32_t crc = 0;
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
  bool announcing_ = false;   // some thread is, and looks for the next chunk afterwards
  std::vector<Early> early_;  // no more than there are slots
  uint64_t turns_done_ = 0;   // how many, not which
  mutable Drain* drains_ = nullptr;
  uint64_t digest_ = 0;
};

}  // namespace ppmr
