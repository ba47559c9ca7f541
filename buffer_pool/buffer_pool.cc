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

uint32_t SlotLease::generation() const {
  assert(pool_ != nullptr && "the lease is empty");
  return pool_->generations_[index_];
}

std::span<std::byte> SlotLease::payload() const {
  assert(pool_ != nullptr && "the lease is empty");
  return pool_->payload(index_);
}

std::span<std::byte> SlotLease::request_area() const {
  assert(pool_ != nullptr && "the lease is empty");
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
      states_(slot_count, SlotState::kFree),
      to_wipe_(slot_count, false),
      generations_(slot_count, 0) {
  free_slots_.reserve(slot_count);
  for (uint32_t slot = slot_count; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

BufferPool::~BufferPool() {
  MutexLock lock(mutex_);
  assert(free_slots_.size() == slot_count_ && "a lease outlived the pool");
  assert(waiters_.empty() && "a thread waits for a slot of a destroyed pool");
}

SlotLease BufferPool::lend_locked(uint32_t slot) {
  assert(slot < slot_count_ && "the slot is not in the pool");
  assert(states_[slot] != SlotState::kLeased && "the slot has two leases");
  states_[slot] = SlotState::kLeased;
  ++generations_[slot];
  in_use_max_ = std::max(in_use_max_, slot_count_ - free_slots_.size());
  return SlotLease(this, slot);
}

SlotLease BufferPool::take_locked() {
  if (free_slots_.empty()) return {};
  assert(waiters_.empty() && "a slot is free although threads wait for one");
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  assert(states_[slot] == SlotState::kFree && "a slot of the free list is in use");
  return lend_locked(slot);
}

SlotLease BufferPool::try_acquire() {
  MutexLock lock(mutex_);
  return take_locked();
}

SlotLease BufferPool::acquire(std::chrono::milliseconds timeout) {
  return acquire(timeout, [] { return true; });
}

SlotLease BufferPool::acquire(std::chrono::milliseconds check_interval,
                              const std::function<bool()>& give_up) {
  // Declared before `lock`, so destroyed after it: the destructor of an unused lease locks mutex_.
  Waiter waiter;
  MutexLock lock(mutex_);
  if (SlotLease lease = take_locked()) return lease;
  const auto start = std::chrono::steady_clock::now();
  ++waits_;
  waiters_.push_back(&waiter);
  const auto leave_line_locked = [&]() PPMR_REQUIRES(mutex_) {
    std::erase(waiters_, &waiter);
    wait_time_us_ += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                               std::chrono::steady_clock::now() - start)
                                               .count());
  };
  bool given_up = false;
  while (!given_up && !waiter.granted.wait_for(mutex_, check_interval,
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
    MutexLock lock(mutex_);
    free.swap(free_slots_);
    free_slots_.reserve(slot_count_);
    to_wipe_.assign(slot_count_, true);
    for (const uint32_t slot : free) {
      assert(states_[slot] == SlotState::kFree && "a slot of the free list is in use");
      states_[slot] = SlotState::kWiping;
      to_wipe_[slot] = false;
    }
  }
  for (const uint32_t slot : free) {
    clear(slot);
    MutexLock lock(mutex_);
    assert(states_[slot] == SlotState::kWiping && "a slot was lent while wipe() cleared it");
    make_free_locked(slot);
  }
}

void BufferPool::give_back(uint32_t slot) {
  MutexLock lock(mutex_);
  assert(states_[slot] == SlotState::kLeased && "a lease ended twice");
  if (to_wipe_[slot]) {
    to_wipe_[slot] = false;
    lock.unlock();
    clear(slot);
    lock.lock();
  }
  make_free_locked(slot);
}

void BufferPool::make_free_locked(uint32_t slot) {
  assert(free_slots_.size() < slot_count_ && "more free slots than the pool has");
  last_release_ = std::chrono::steady_clock::now();
  states_[slot] = SlotState::kFree;
  if (waiters_.empty()) {
    free_slots_.push_back(slot);
    return;
  }
  Waiter& first = *waiters_.front();
  waiters_.erase(waiters_.begin());
  assert(!first.lease && "a waiting thread gets two slots");
  first.lease = lend_locked(slot);
  // This thread notifies while it holds the lock: after it releases the lock, the waiter may be
  // destroyed.
  first.granted.notify_one();
}

size_t BufferPool::waiting() const {
  MutexLock lock(mutex_);
  return waiters_.size();
}

std::chrono::steady_clock::time_point BufferPool::last_release() const {
  MutexLock lock(mutex_);
  return last_release_;
}

std::optional<uint32_t> BufferPool::slot_at(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const std::byte* const begin = memory_.bytes().data();
  if (at < begin || at >= begin + slot_count_ * stride_bytes_) return std::nullopt;
  return static_cast<uint32_t>(static_cast<size_t>(at - begin) / stride_bytes_);
}

std::span<std::byte> BufferPool::payload(uint32_t slot) const {
  assert(slot < slot_count_ && "the slot is not in the pool");
  return {slot_start(slot) + kPageSizeBytes, chunk_size_bytes_};
}

PoolCounters BufferPool::counters() const {
  MutexLock lock(mutex_);
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
