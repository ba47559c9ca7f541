// The fixed pool of slots in registered memory. At the source every byte of a migration passes
// through it (the "buffer pool" of Ouyang et al., CCGrid 2011).
//
// A slot holds one chunk. A FUSE_WRITE request has 80 bytes of headers before its payload. A
// request that is received into `request_area()` therefore leaves its payload at the page-aligned
// start of `payload()`, in registered memory, and needs no further copy.
//
// clang-format off
//   slot  |<- 4096: headers end here ->|<- chunk_size: payload ->|<- 4096: see below ->|
//                                 ^ request_area() = payload - 80
// clang-format on
//
// libfuse always reads a request with a length of max_write + 4096 bytes, here to request_area().
// The last page of the slot keeps this range inside the slot.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mapped_memory.h"
#include "base/mutex.h"
#include "base/result.h"

namespace ppmr {

class BufferPool;

// sizeof(fuse_in_header) + sizeof(fuse_write_in), include/uapi/linux/fuse.h.
inline constexpr size_t kFuseWriteHeaderBytes = 80;
inline constexpr size_t kChunkSizeMinBytes = size_t{64} << 10;
// The kernel puts at most 256 pages into one FUSE request.
inline constexpr size_t kChunkSizeMaxBytes = size_t{1} << 20;
inline constexpr size_t kPoolSizeMaxBytes = size_t{64} << 30;

// The exclusive right to use one slot. Move-only; the destructor releases the slot. Threads: one
// thread at a time uses a lease.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease() { release(); }

  explicit operator bool() const { return pool_ != nullptr; }
  uint32_t index() const { return index_; }
  // Counts the leases of this slot. Index and generation together identify one lease, so a late
  // message about an earlier lease of the slot can be detected.
  uint32_t generation() const;
  std::span<std::byte> payload() const;  // chunk_size bytes, page-aligned
  std::span<std::byte> request_area() const;
  void release();

 private:
  friend class BufferPool;
  SlotLease(BufferPool* pool, uint32_t index) : pool_(pool), index_(index) {}

  BufferPool* pool_ = nullptr;
  uint32_t index_ = 0;
};

struct PoolCounters {
  size_t slots = 0;
  size_t free = 0;
  size_t in_use = 0;
  size_t in_use_max = 0;      // the largest value of in_use so far
  uint64_t waits = 0;         // acquisitions that found no free slot
  uint64_t wait_time_us = 0;  // the time that those acquisitions waited in total
};

// Threads: all members may be called from any thread. The pool outlives its leases (asserted).
class BufferPool {
 public:
  // Allocates and touches the memory. Errors: EINVAL when a size is out of range or the pool is
  // smaller than a chunk; ENOMEM.
  static Result<std::unique_ptr<BufferPool>> create(size_t pool_size_bytes,
                                                    size_t chunk_size_bytes);
  ~BufferPool();

  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Returns an empty lease when no slot is free.
  SlotLease try_acquire();
  // Waits up to `timeout` for a free slot. Returns an empty lease if no slot became free. Waiting
  // callers get slots in the order of their calls.
  SlotLease acquire(std::chrono::milliseconds timeout);
  // Waits for a free slot until `give_up` returns true; then returns an empty lease. Calls
  // `give_up` every `check_interval`, without holding a lock.
  SlotLease acquire(std::chrono::milliseconds check_interval, const std::function<bool()>& give_up);

  // Clears the free slots now, and each leased slot when its lease ends. Call it before the
  // connection of a peer that must not read the bytes of earlier peers: a peer's device can read
  // all registered memory at any time.
  void wipe();

  size_t waiting() const;  // callers that wait for a slot
  // Returns the time at which a slot last became free, or the time of the pool's creation if none
  // has.
  std::chrono::steady_clock::time_point last_release() const;

  // Returns the slot whose request area or payload contains `address`.
  std::optional<uint32_t> slot_at(const void* address) const;

  size_t chunk_size_bytes() const { return chunk_size_bytes_; }
  uint32_t slot_count() const { return slot_count_; }
  std::span<std::byte> payload(uint32_t slot) const;
  // Distance between the payloads of two neighbouring slots.
  size_t slot_stride_bytes() const { return stride_bytes_; }
  // The memory to register with a device.
  std::span<std::byte> memory() const { return memory_.bytes(); }
  // Returns the memfd with the same bytes, for a process that fills slots (see processes/memory).
  int descriptor() const { return memory_.descriptor(); }
  PoolCounters counters() const;

 private:
  friend class SlotLease;
  BufferPool(MappedMemory memory, uint32_t slot_count, size_t chunk_size_bytes);
  std::byte* slot_start(uint32_t slot) const {
    return memory_.bytes().data() + slot * stride_bytes_;
  }
  // Free: in free_slots_. Wiping: wipe() clears the slot, no lease exists.
  enum class SlotState : uint8_t { kFree, kLeased, kWiping };
  struct Waiter {  // on the stack of acquire()
    CondVar granted;
    SlotLease lease;
  };
  void give_back(uint32_t slot);
  void make_free_locked(uint32_t slot) PPMR_REQUIRES(mutex_);  // or lends it to the first waiter
  void clear(uint32_t slot);
  SlotLease lend_locked(uint32_t slot) PPMR_REQUIRES(mutex_);
  SlotLease take_locked() PPMR_REQUIRES(mutex_);  // a lease of a free slot; empty if none is free

  // Constant after construction.
  const MappedMemory memory_;
  const size_t chunk_size_bytes_;
  const size_t stride_bytes_;
  const uint32_t slot_count_;

  mutable Mutex mutex_;
  std::vector<SlotState> states_ PPMR_GUARDED_BY(mutex_);  // by slot; checked by assertions
  std::vector<bool> to_wipe_ PPMR_GUARDED_BY(mutex_);      // by slot: the lease began before wipe()
  // A stack: the cache still holds recently used slots.
  std::vector<uint32_t> free_slots_ PPMR_GUARDED_BY(mutex_);
  // In the order of their acquire() calls; empty while a slot is free.
  std::vector<Waiter*> waiters_ PPMR_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point last_release_ PPMR_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  size_t in_use_max_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t waits_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t wait_time_us_ PPMR_GUARDED_BY(mutex_) = 0;

  std::vector<uint32_t> generations_;  // by slot; changed only when a lease of the slot begins
};

}  // namespace ppmr
