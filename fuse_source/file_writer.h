// Turns the writes of one file into chunks. A large write becomes a chunk in the slot that received
// it; contiguous small writes are gathered in one slot first.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/session/outlet.h"

namespace ppmr {

// The chunks that one write completed, at most two: the bytes gathered before it, and the write
// itself. The caller announces them after it has replied to the process that wrote.
class CutChunks {
 public:
  void add(Chunk chunk) { chunks_[count_++] = std::move(chunk); }
  void announce(Outlet& outlet) {
    for (size_t i = 0; i < count_; ++i) outlet.announce(std::move(chunks_[i]));
    count_ = 0;
  }

 private:
  std::array<Chunk, 2> chunks_;
  size_t count_ = 0;
};

// Threads: any.
class FileWriter {
 public:
  FileWriter(uint64_t node, std::shared_ptr<StickyError> checkpoint_error,
             std::shared_ptr<Outlet> outlet)
      : stream_(std::make_shared<FileStream>(node, std::move(checkpoint_error))),
        outlet_(std::move(outlet)) {}

  // Appends a copy of `bytes` to the gathered bytes, if they are contiguous and fit.
  bool append(std::span<const std::byte> bytes, uint64_t offset, CutChunks& cut);
  // Takes over the lease of the slot that contains `bytes`. Returns true if this writer now needs a
  // thread that watches it: later writes can be gathered behind `bytes`, and no thread watches yet.
  // The thread must then call flush_if_quiet() repeatedly until that returns true.
  bool adopt(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset, CutChunks& cut);

  // Makes a chunk of `bytes`, which are in the slot of the lease, and gathers no bytes behind it.
  // The caller ensures that `bytes` overlap no other bytes in flight, and announces the chunk.
  Chunk cut_apart(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset);

  // Sends the gathered bytes.
  void flush();
  // The watching thread calls this. Sends the gathered bytes if no write added bytes for `quiet`.
  // Returns false while bytes remain gathered, and true when the thread can stop watching.
  bool flush_if_quiet(std::chrono::microseconds quiet);
  // Sends the gathered bytes and waits until the target has verified every byte.
  Status drain(const Interrupted& interrupted);

  uint64_t size_bytes() const;
  void set_size_bytes(uint64_t size_bytes);
  FileStream& stream() { return *stream_; }

 private:
  struct Gathered {
    SlotLease lease;
    uint32_t slot_offset = 0;
    uint32_t length = 0;
    uint64_t offset = 0;
    std::chrono::steady_clock::time_point last_write;
  };
  void cut_locked(CutChunks& cut) PPMR_REQUIRES(mutex_);

  const std::shared_ptr<FileStream> stream_;
  const std::shared_ptr<Outlet> outlet_;

  mutable Mutex mutex_;
  std::optional<Gathered> gathered_ PPMR_GUARDED_BY(mutex_);
  bool watched_ PPMR_GUARDED_BY(mutex_) = false;
  uint64_t size_bytes_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
