#include "fuse_source/wanted_blocks.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace ppmr {
namespace {

constexpr size_t kWordBits = 64;

}  // namespace

WantedBlocks::WantedBlocks(uint64_t file_bytes)
    : file_bytes_(file_bytes),
      block_count_(static_cast<size_t>((file_bytes + kWantedBlockBytes - 1) / kWantedBlockBytes)),
      taken_((block_count_ + kWordBits - 1) / kWordBits),
      wanted_(taken_.size()) {}

// Sets whole words of bits, because a request may cover the whole file, and the caller is the
// thread of the session.
void WantedBlocks::want(uint64_t offset, uint64_t length) {
  if (length == 0 || offset >= file_bytes_) return;
  const uint64_t last_byte = offset + std::min(length, file_bytes_ - offset) - 1;
  const auto first = static_cast<size_t>(offset / kWantedBlockBytes);
  const auto last = static_cast<size_t>(last_byte / kWantedBlockBytes);
  {
    MutexLock lock(mutex_);
    for (size_t word = first / kWordBits; word <= last / kWordBits; ++word) {
      uint64_t requested = UINT64_MAX;
      if (word == first / kWordBits) requested &= UINT64_MAX << (first % kWordBits);
      if (word == last / kWordBits) requested &= UINT64_MAX >> (kWordBits - 1 - last % kWordBits);
      const uint64_t added = requested & ~taken_[word] & ~wanted_[word];
      wanted_[word] |= added;
      wanted_count_ += static_cast<size_t>(std::popcount(added));
    }
  }
  changed_.notify_all();
}

size_t WantedBlocks::find_locked(const Bits& bits, size_t from, bool value) const {
  for (size_t word = from / kWordBits; word < bits.size(); ++word) {
    uint64_t found = value ? bits[word] : ~bits[word];
    if (word == from / kWordBits) found &= UINT64_MAX << (from % kWordBits);
    if (found == 0) continue;
    return std::min(word * kWordBits + static_cast<size_t>(std::countr_zero(found)), block_count_);
  }
  return block_count_;
}

WantedBlocks::Part WantedBlocks::take_locked(size_t first, size_t end) {
  for (size_t block = first; block < end; ++block) {
    const uint64_t bit = uint64_t{1} << (block % kWordBits);
    assert(block < block_count_ && (taken_[block / kWordBits] & bit) == 0 &&
           "a block was taken twice");
    taken_[block / kWordBits] |= bit;
    if ((wanted_[block / kWordBits] & bit) == 0) continue;
    wanted_[block / kWordBits] &= ~bit;
    assert(wanted_count_ > 0 && "more blocks were taken than requested");
    if (--wanted_count_ == 0) changed_.notify_all();
  }
  const uint64_t begin = first * kWantedBlockBytes;
  const Part taken{begin, std::min(end * kWantedBlockBytes, file_bytes_) - begin};
  taken_bytes_ += taken.length;
  assert(taken_bytes_ <= file_bytes_ && "more bytes were taken than the file has");
  return taken;
}

WantedBlocks::Part WantedBlocks::take_next(uint64_t offset, uint64_t length_max) {
  const auto blocks_max = std::max<size_t>(length_max / kWantedBlockBytes, 1);
  MutexLock lock(mutex_);
  const size_t first = find_locked(taken_, offset / kWantedBlockBytes, false);
  if (first == block_count_) return {};
  return take_locked(first, std::min(find_locked(taken_, first, true), first + blocks_max));
}

WantedBlocks::Part WantedBlocks::take_wanted(uint64_t length_max) {
  const auto blocks_max = std::max<size_t>(length_max / kWantedBlockBytes, 1);
  MutexLock lock(mutex_);
  if (wanted_count_ == 0) return {};
  size_t first = find_locked(wanted_, next_wanted_, true);
  if (first == block_count_) first = find_locked(wanted_, 0, true);
  assert(first < block_count_ && "no block is requested although some were counted");
  next_wanted_ = std::min(find_locked(wanted_, first, false), first + blocks_max);
  sending_wanted_ = true;
  return take_locked(first, next_wanted_);
}

void WantedBlocks::wanted_sent() {
  {
    MutexLock lock(mutex_);
    sending_wanted_ = false;
  }
  changed_.notify_all();
}

uint64_t WantedBlocks::taken_bytes() const {
  MutexLock lock(mutex_);
  return taken_bytes_;
}

bool WantedBlocks::any_wanted() const {
  MutexLock lock(mutex_);
  return any_wanted_locked();
}

bool WantedBlocks::await_wanted() {
  MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return wanted_count_ > 0 || finished_; });
  return !finished_;
}

void WantedBlocks::await_none_wanted() {
  MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return !any_wanted_locked(); });
}

void WantedBlocks::finish() {
  {
    MutexLock lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
}

bool WantedBlocks::finished() const {
  MutexLock lock(mutex_);
  return finished_;
}

}  // namespace ppmr
