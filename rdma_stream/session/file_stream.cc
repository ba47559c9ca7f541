#include "rdma_stream/session/file_stream.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

namespace ppmr {

Error interruption() { return {EINTR, "interrupted while waiting for the target"}; }

Chunk FileStream::cut(SlotLease lease, uint32_t slot_offset, uint32_t length, uint64_t offset) {
  MutexLock lock(mutex_);
  Chunk chunk;
  chunk.file = shared_from_this();
  chunk.lease = std::move(lease);
  chunk.slot_offset = slot_offset;
  chunk.length = length;
  chunk.offset = offset;
  assert(length > 0 && "a chunk without bytes");
  chunk.turn = turns_cut_++;
  return chunk;
}

Status FileStream::drain(const Interrupted& interrupted) const {
  MutexLock lock(mutex_);
  // Chunks finish in any order, so the number of finished chunks does not show whether all chunks
  // created before this call have finished. So each call of drain() counts its own unfinished
  // chunks.
  assert(turns_done_ <= turns_cut_ && "more chunks finished than there are");
  Drain drain{turns_cut_, turns_cut_ - turns_done_, drains_};
  drains_ = &drain;
  bool given_up = false;
  while (drain.left > 0 && !given_up) {
    changed_.wait_for(mutex_, kInterruptCheck);
    given_up = drain.left > 0 && interrupted && interrupted();
  }
  assert((given_up || drain.left == 0) && "drain() ends early");
  Drain** link = &drains_;
  while (*link != &drain) link = &(*link)->next;
  *link = drain.next;
  if (given_up) return failure(interruption());
  return checkpoint_error_->status();
}

void FileStream::await_announced() const {
  MutexLock lock(mutex_);
  const uint64_t end = turns_cut_;
  ++await_announced_calls_;
  // An outlet that sends nothing finishes chunks without announcing them.
  changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) {
    return std::max(turns_announced_, turns_done_) >= end;
  });
  assert(await_announced_calls_ > 0);
  --await_announced_calls_;
}

void FileStream::announce_in_turn(Chunk chunk, const wire::ChunkCheck& check,
                                  const Announce& announce) {
  MutexLock lock(mutex_);
  assert(chunk.turn < turns_cut_ && chunk.turn >= turns_announced_ &&
         "the turn of the chunk is over");
  early_.push_back({std::move(chunk), check});
  if (announcing_) return;
  announcing_ = true;
  for (Early next; take_next_locked(next);) {
    const uint64_t begin = next.chunk.offset;
    const uint64_t end = begin + next.chunk.length;
    const auto idle = [this]() PPMR_REQUIRES(mutex_) { return turns_done_ == turns_announced_; };
    // A session that fails also finishes its chunks, so this wait always ends.
    if (!next.chunk.apart && in_flight_.overlaps(begin, end)) changed_.wait(mutex_, idle);
    if (idle()) in_flight_.clear();
    in_flight_.add(begin, end);
    lock.unlock();
    announce(std::move(next.chunk), next.check);
    lock.lock();
    ++turns_announced_;
    assert(turns_announced_ <= turns_cut_ && "more chunks announced than there are");
    if (await_announced_calls_ > 0) changed_.notify_all();
  }
  announcing_ = false;
}

void FileStream::RangesInFlight::add(uint64_t begin, uint64_t end) {
  const auto used = std::span(ranges_).first(count_);
  const auto adjacent = std::find_if(used.begin(), used.end(),
                                     [&](const Range& range) { return range.end == begin; });
  if (adjacent != used.end()) {
    adjacent->end = end;
  } else if (count_ < ranges_.size()) {
    ranges_[count_++] = {begin, end};
  } else {
    Range& last = ranges_.back();
    last = {std::min(last.begin, begin), std::max(last.end, end)};
  }
}

bool FileStream::RangesInFlight::overlaps(uint64_t begin, uint64_t end) const {
  const auto used = std::span(ranges_).first(count_);
  return std::any_of(used.begin(), used.end(),
                     [&](const Range& range) { return range.begin < end && begin < range.end; });
}

bool FileStream::take_next_locked(Early& next) {
  const auto found =
      std::find_if(early_.begin(), early_.end(), [&](const Early& early) PPMR_REQUIRES(mutex_) {
        return early.chunk.turn == turns_announced_;
      });
  if (found == early_.end()) return false;
  next = std::move(*found);
  std::swap(*found, early_.back());
  early_.pop_back();
  return true;
}

void FileStream::verified(uint64_t turn, uint64_t chunk_digest) {
  MutexLock lock(mutex_);
  digest_ += chunk_digest;
  done_locked(turn);
}

void FileStream::failed(uint64_t turn, Error error) {
  checkpoint_error_->set(std::move(error));
  MutexLock lock(mutex_);
  done_locked(turn);
}

void FileStream::done_locked(uint64_t turn) {
  ++turns_done_;
  assert(turn < turns_cut_ && turns_done_ <= turns_cut_ && "a chunk finished twice");
  for (Drain* drain = drains_; drain != nullptr; drain = drain->next) {
    if (turn >= drain->end) continue;
    assert(drain->left > 0 && "a chunk finished twice");
    --drain->left;
  }
  if (drains_ != nullptr || await_announced_calls_ > 0 || turns_done_ == turns_announced_) {
    changed_.notify_all();
  }
}

uint64_t FileStream::digest() const {
  MutexLock lock(mutex_);
  return digest_;
}

void FileStream::reset_digest() {
  MutexLock lock(mutex_);
  digest_ = 0;
}

}  // namespace ppmr
