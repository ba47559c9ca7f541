#include "buffer_pool/buffer_pool.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

namespace ppmr {

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = other.index_;
  }
  return *this;
}

uint32_t SlotLease::generation() const { return pool_->generations_[index_]; }

std::span<std::byte> SlotLease::payload() const { return pool_->payload(index_); }

std::span<std::byte> SlotLease::request_area() const {
  std::byte* const start = pool_->slot_start(index_);
  return {start + kPageSizeBytes - kFuseWriteHeaderBytes,
          kFuseWriteHeaderBytes + pool_->chunk_size_bytes_ + kPageSizeBytes};
}

void SlotLease::release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(index_);
}

Result<std::unique_ptr<BufferPool>> BufferPool::create(size_t pool_size_bytes,
                                                       size_t chunk_size_bytes) {
  if (chunk_size_bytes < kChunkSizeMinBytes || chunk_size_bytes > kChunkSizeMaxBytes ||
      chunk_size_bytes % kPageSizeBytes != 0) {
    return failure(EINVAL, "chunk size of " + std::to_string(chunk_size_bytes) +
                               " bytes: must be 64 KiB to 1 MiB and a multiple of 4 KiB");
  }
  if (pool_size_bytes < chunk_size_bytes) {
    return failure(EINVAL, "pool size of " + std::to_string(pool_size_bytes) +
                               " bytes: smaller than a chunk of " +
                               std::to_string(chunk_size_bytes) + " bytes");
  }
  if (pool_size_bytes > kPoolSizeMaxBytes) {
    return failure(EINVAL,
                   "pool size of " + std::to_string(pool_size_bytes) + " bytes: more than 64 GiB");
  }
  const auto slot_count = static_cast<uint32_t>(pool_size_bytes / chunk_size_bytes);
  auto memory = MappedMemory::create_shared(slot_count * (chunk_size_bytes + 2 * kPageSizeBytes),
                                            MappedMemory::Others::kWrite);
  if (!memory) return failure(memory.error());
  MappedMemory::make_huge(memory->bytes());
  MappedMemory::touch(memory->bytes());
  return std::unique_ptr<BufferPool>(
      new BufferPool(std::move(*memory), slot_count, chunk_size_bytes));
}

BufferPool::BufferPool(MappedMemory memory, uint32_t slot_count, size_t chunk_size_bytes)
    : memory_(std::move(memory)),
      chunk_size_bytes_(chunk_size_bytes),
      stride_bytes_(chunk_size_bytes + 2 * kPageSizeBytes),
      slot_count_(slot_count),
      to_wipe_(slot_count, false),
      generations_(slot_count, 0) {
  free_slots_.reserve(slot_count);
  for (uint32_t slot = slot_count; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

BufferPool::~BufferPool() {
  std::lock_guard lock(mutex_);
  assert(free_slots_.size() == slot_count_ && "a lease outlived the pool");
}

SlotLease BufferPool::lend_locked(uint32_t slot) {
  ++generations_[slot];
  in_use_max_ = std::max(in_use_max_, slot_count_ - free_slots_.size());
  return SlotLease(this, slot);
}

SlotLease BufferPool::take_locked() {
  if (free_slots_.empty()) return {};
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return lend_locked(slot);
}

SlotLease BufferPool::try_acquire() {
  std::lock_guard lock(mutex_);
  return take_locked();
}

SlotLease BufferPool::acquire(std::chrono::milliseconds timeout) {
  return acquire(timeout, [] { return true; });
}

SlotLease BufferPool::acquire(std::chrono::milliseconds check_interval,
                              const std::function<bool()>& give_up) {
  // Declared before `lock`, so destroyed after it: the destructor of an unused lease locks mutex_.
  Waiter waiter;
  std::unique_lock lock(mutex_);
  if (SlotLease lease = take_locked()) return lease;
  const auto start = std::chrono::steady_clock::now();
  ++waits_;
  waiters_.push_back(&waiter);
  const auto leave_line_locked = [&] {
    std::erase(waiters_, &waiter);
    wait_time_us_ += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                               std::chrono::steady_clock::now() - start)
                                               .count());
  };
  bool given_up = false;
  while (!given_up && !waiter.granted.wait_for(lock, check_interval,
                                               [&] { return static_cast<bool>(waiter.lease); })) {
    lock.unlock();
    try {
      given_up = give_up();
    } catch (...) {
      lock.lock();
      leave_line_locked();
      throw;
    }
    lock.lock();
  }
  leave_line_locked();
  return std::move(waiter.lease);
}

void BufferPool::clear(uint32_t slot) { std::memset(slot_start(slot), 0, stride_bytes_); }

void BufferPool::wipe() {
  std::vector<uint32_t> free;
  {
    std::lock_guard lock(mutex_);
    free.swap(free_slots_);
    free_slots_.reserve(slot_count_);
    to_wipe_.assign(slot_count_, true);
    for (const uint32_t slot : free) to_wipe_[slot] = false;
  }
  for (const uint32_t slot : free) {
    clear(slot);
    give_back(slot);
  }
}

void BufferPool::give_back(uint32_t slot) {
  std::unique_lock lock(mutex_);
  if (to_wipe_[slot]) {
    to_wipe_[slot] = false;
    lock.unlock();
    clear(slot);
    lock.lock();
  }
  last_release_ = std::chrono::steady_clock::now();
  if (waiters_.empty()) {
    free_slots_.push_back(slot);
    return;
  }
  Waiter& first = *waiters_.front();
  waiters_.erase(waiters_.begin());
  first.lease = lend_locked(slot);
  // This thread notifies while it holds the lock: after it releases the lock, the waiter may be
  // destroyed.
  first.granted.notify_one();
}

size_t BufferPool::waiting() const {
  std::lock_guard lock(mutex_);
  return waiters_.size();
}

std::chrono::steady_clock::time_point BufferPool::last_release() const {
  std::lock_guard lock(mutex_);
  return last_release_;
}

std::optional<uint32_t> BufferPool::slot_at(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const std::byte* const begin = memory_.bytes().data();
  if (at < begin || at >= begin + slot_count_ * stride_bytes_) return std::nullopt;
  return static_cast<uint32_t>(static_cast<size_t>(at - begin) / stride_bytes_);
}

std::span<std::byte> BufferPool::payload(uint32_t slot) const {
  return {slot_start(slot) + kPageSizeBytes, chunk_size_bytes_};
}

PoolCounters BufferPool::counters() const {
  std::lock_guard lock(mutex_);
  PoolCounters counters;
  counters.slots = slot_count_;
  counters.free = free_slots_.size();
  counters.in_use = slot_count_ - free_slots_.size();
  counters.in_use_max = in_use_max_;
  counters.waits = waits_;
  counters.wait_time_us = wait_time_us_;
  return counters;
}

}  // namespace ppmr
