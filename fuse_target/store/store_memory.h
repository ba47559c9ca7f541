// The memory of the image store: allocated and touched ahead of need, up to a limit, reused, and
// given back to the system when it has not been needed for some minutes.
//
//   region (64 MiB, a memfd, registered as a whole by a device)  =  32 extents of 2 MiB
//   extent  =  one block of 2 MiB,  or a slab of equal blocks of 4 KiB, 8 KiB ... 1 MiB
//
// The first touch of fresh memory is the most expensive step on a virtual machine, because the host
// allocates the page then. Hence a background thread touches extents before chunks need them, and a
// freed extent is reused first. The store does not clear it, because readers get arrived bytes
// only.
//
// The processes that have arrived need the memory that is free beyond the reserve. So the thread
// unmaps regions of which no extent is in use. It cannot free a part of a region, because the seals
// of the memfd forbid this.
//
// Regions are memfds, so that another process can borrow bytes. The kernel gives memfds no huge
// pages by default: then the first touch reaches 1.8 GiB/s. MADV_COLLAPSE gets them (Linux 6.1): 14
// GiB/s, private memory 17 GiB/s, on memory that the host has backed. Whole transfers of 1 GiB take
// the same time as with private memory, transfers beyond the reserve 7% longer
// (bench/first_touch.cc; bench/README.md).
//
// Rejected: malloc per chunk (touched during the transfer, cannot be registered); private memory
// (cannot be lent).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/mapped_memory.h"
#include "base/mutex.h"
#include "base/result.h"

namespace ppmr {

class StoreMemory;
struct StoreExtent;

inline constexpr size_t kExtentBytes = size_t{2} << 20;
inline constexpr size_t kRegionBytes = size_t{64} << 20;
inline constexpr size_t kSmallestBlockBytes = size_t{4} << 10;
inline constexpr size_t kLimitMinBytes = 8 * kExtentBytes;

// A counted reference to a block. The last reference frees the block, so a reply or an RDMA READ in
// flight keeps its bytes when the file is removed. Threads: one thread at a time uses a BlockRef;
// copies are independent.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other);
  BlockRef(BlockRef&& other) noexcept
      : extent_(std::exchange(other.extent_, nullptr)), index_(other.index_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(extent_, other.extent_);
    std::swap(index_, other.index_);
    return *this;
  }
  ~BlockRef() { reset(); }

  explicit operator bool() const { return extent_ != nullptr; }
  std::span<std::byte> bytes() const;
  uint32_t region() const;
  int descriptor() const;          // the memfd of the region
  uint64_t region_offset() const;  // offset of the block in its region, and so in the memfd
  uint32_t id() const;             // identifies the block in its store
  void reset();
  // Passes the reference to the caller as a block id; StoreMemory::adopt() turns it into a
  // BlockRef.
  uint32_t detach();

 private:
  friend class StoreMemory;
  BlockRef(StoreExtent* extent, uint32_t index) : extent_(extent), index_(index) {}

  StoreExtent* extent_ = nullptr;
  uint32_t index_ = 0;
};

// Bytes of the limit that are used for other data than blocks, until the end of this object.
// Threads: one at a time.
class StoreCharge {
 public:
  StoreCharge() = default;
  StoreCharge(StoreCharge&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  StoreCharge& operator=(StoreCharge other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StoreCharge();

  explicit operator bool() const { return memory_ != nullptr; }
  size_t bytes() const { return bytes_; }

 private:
  friend class StoreMemory;
  StoreCharge(StoreMemory* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  StoreMemory* memory_ = nullptr;
  size_t bytes_ = 0;
};

// While this object exists, other processes read lent bytes and need the cores, which the store
// cannot observe. Threads: one at a time.
class StoreUse {
 public:
  StoreUse() = default;
  StoreUse(StoreUse&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  StoreUse& operator=(StoreUse other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~StoreUse();

 private:
  friend class StoreMemory;
  explicit StoreUse(StoreMemory* memory) : memory_(memory) {}

  StoreMemory* memory_ = nullptr;
};

struct StoreOptions {
  size_t limit_bytes = size_t{1} << 30;
  size_t ready_bytes = size_t{1} << 30;  // reserve of touched memory, part of the limit
  // These are parts of the limit. With a spill directory images fill all memory that they may use,
  // and more images follow. The next file then needs memory for its name, and for its bytes on
  // their way to the disk.
  size_t set_aside_bytes = 0;    // only for allocate_bounce()
  size_t for_charges_bytes = 0;  // only for charge(), which may also take other free memory
  // Called while the store's lock is held, whenever a region is mapped.
  std::function<void(uint32_t region, std::span<std::byte> memory)> region_mapped;
  // Whether the store may unmap a region again. Otherwise a region stays until the store is
  // destroyed.
  bool gives_back = true;
  // The time without use after which the store gives memory back. It is long enough for the next
  // process of an evacuation to arrive. On a virtual machine whose host takes free memory back, a
  // move of 4 GiB takes half as long again in fresh memory.
  std::chrono::milliseconds give_back_after{std::chrono::minutes(5)};
};

struct StoreCounters {
  size_t limit_bytes = 0;
  size_t used_bytes = 0;     // whole extents
  size_t charged_bytes = 0;  // see StoreMemory::charge()
  size_t ready_bytes = 0;    // free and touched
  size_t reserve_bytes = 0;  // the level to which ready_bytes returns when idle
};

// Threads: any thread may call any member. The store must live longer than its blocks (asserted).
class StoreMemory {
 public:
  // The store's thread calls `space_freed`, without a lock, when a block is freed after a failed
  // allocation. Errors: EINVAL for a limit below kLimitMinBytes. Throws std::system_error when the
  // store's thread cannot be started.
  static Result<std::unique_ptr<StoreMemory>> create(StoreOptions options,
                                                     std::function<void()> space_freed);
  ~StoreMemory();

  StoreMemory(const StoreMemory&) = delete;
  StoreMemory& operator=(const StoreMemory&) = delete;

  // Returns a block of at least `size_bytes` (at most an extent), not cleared. Empty when the limit
  // is reached. A whole extent may use up `promised`, which the caller has charged for it.
  BlockRef allocate(size_t size_bytes, StoreCharge* promised = nullptr);
  // Returns an extent through which bytes pass to the spill file. Empty when the limit is reached.
  BlockRef allocate_bounce();
  // Counts memory of the caller against the limit. Returns an empty charge when the limit is
  // reached.
  StoreCharge charge(size_t size_bytes);
  // Turns a block id of BlockRef::detach() into a BlockRef. Needs no lock: the region of a used
  // block stays as it is.
  BlockRef adopt(uint32_t block_id) PPMR_NO_THREAD_SAFETY_ANALYSIS;

  // Postpones the work of the store's thread, because readers and writers need the cores now.
  void note_use() { used_at_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed); }
  std::chrono::steady_clock::time_point last_use() const {
    return used_at_.load(std::memory_order_relaxed);
  }
  // Postpones this work until the returned object ends.
  StoreUse begin_use();

  StoreCounters counters() const;

 private:
  friend class BlockRef;
  friend class StoreCharge;
  friend class StoreUse;
  struct Region;
  struct Slabs {  // slabs of one block size
    std::vector<StoreExtent*> not_full;
  };

  StoreMemory(StoreOptions options, std::function<void()> space_freed);
  static size_t slab_class(size_t size_bytes);
  // Returns the limit without the charged bytes. The caller may use `promised_bytes` of the charged
  // bytes.
  size_t extents_max_locked(size_t promised_bytes = 0) const PPMR_REQUIRES(mutex_);
  StoreExtent* take_extent_locked(size_t extents_max) PPMR_REQUIRES(mutex_);
  StoreExtent* fresh_extent_locked() PPMR_REQUIRES(mutex_);
  void return_extent_locked(StoreExtent* extent) PPMR_REQUIRES(mutex_);
  Region& region_of(const StoreExtent& extent) const PPMR_REQUIRES(mutex_);
  void free_block(StoreExtent* extent, uint32_t index);
  void note_freed_locked() PPMR_REQUIRES(mutex_);
  size_t ready_extents_locked() const PPMR_REQUIRES(mutex_) {
    return returned_.size() + touched_.size();
  }
  bool touch_due_locked() const PPMR_REQUIRES(mutex_);
  bool give_back_due_locked() const PPMR_REQUIRES(mutex_);
  bool is_scarce_locked() const PPMR_REQUIRES(mutex_);
  void keep_reserve();
  void touch_extent() PPMR_REQUIRES(mutex_);
  void give_region_back() PPMR_REQUIRES(mutex_);

  // Constant after construction.
  const size_t limit_extents_;
  const size_t ready_extents_;
  const size_t set_aside_extents_;
  const size_t extents_for_charges_;
  const std::function<void(uint32_t, std::span<std::byte>)> region_mapped_;
  const bool gives_back_;
  const std::chrono::milliseconds give_back_after_;
  const std::function<void()> space_freed_;

  mutable Mutex mutex_;
  CondVar changed_;
  // A region is created before its first block is allocated, and removed only
  // while it has no block.
  std::vector<std::unique_ptr<Region>> regions_ PPMR_GUARDED_BY(mutex_);
  std::vector<Slabs> slabs_ PPMR_GUARDED_BY(mutex_);
  // Free extents that were used before. The extent that was returned last is reused first.
  std::vector<StoreExtent*> returned_ PPMR_GUARDED_BY(mutex_);
  std::vector<StoreExtent*> touched_ PPMR_GUARDED_BY(mutex_);  // free, touched, never used
  // Numbers of the other extents; the last number is used first.
  std::vector<uint32_t> fresh_ PPMR_GUARDED_BY(mutex_);
  size_t unused_regions_ PPMR_GUARDED_BY(mutex_) = 0;  // mapped regions without a used extent
  size_t used_extents_ PPMR_GUARDED_BY(mutex_) = 0;
  size_t charged_bytes_ PPMR_GUARDED_BY(mutex_) = 0;
  size_t uses_ PPMR_GUARDED_BY(mutex_) = 0;  // number of StoreUse objects
  bool touching_ PPMR_GUARDED_BY(mutex_) = false;
  // An allocation failed since the last block was freed.
  bool starved_ PPMR_GUARDED_BY(mutex_) = false;
  bool notify_freed_ PPMR_GUARDED_BY(mutex_) = false;  // thread_ must call space_freed_
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;

  std::atomic<std::chrono::steady_clock::time_point> used_at_{};

  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
