// The way of a chunk through the session: announced, held back, queued, pulled, verified, landed,
// released.
#include <algorithm>

#include "buffer_pool/crc32c.h"
#include "rdma_stream/session/incoming_session.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// A checksum that is wrong so often is not the network's.
constexpr uint32_t kAttemptsMax = 3;
// Longer chunks wait behind shorter ones.
constexpr uint32_t kUrgentMaxBytes = 64 << 10;
// One release of so many slots may wait to be told together with others: the source has the rest.
constexpr size_t kSlotsPerHeldRelease = 8;

void copy_to_pieces(std::span<const std::byte> bytes, const Landing& landing) {
  for (uint32_t i = 0; i < landing.piece_count; ++i) {
    const Landing::Piece& piece = landing.pieces[i];
    std::copy_n(bytes.begin(), piece.length, piece.data);
    bytes = bytes.subspan(piece.length);
  }
}

}  // namespace

// ---- Chunks: announced, held back, queued ------------------------------------------------------

Status IncomingSession::handle_announce(const wire::Announce& announce,
                                        std::span<const std::byte> inline_bytes) {
  if (announce.slot >= chunks_.size() || announce.length == 0 ||
      uint64_t{announce.slot_offset} + announce.length > options_.hello.chunk_size_bytes ||
      announce.offset > uint64_t{INT64_MAX} - announce.length) {
    return failure(
        EPROTO, "announcement of slot " + std::to_string(announce.slot) + ": numbers out of range");
  }
  ChunkEntry& entry = chunks_[announce.slot];
  {
    std::lock_guard lock(mutex_);
    if (entry.state != ChunkState::kIdle) {
      return failure(
          EPROTO, "announcement of slot " + std::to_string(announce.slot) + ": not released yet");
    }
  }
  const auto known = sink_.announced(key(announce.node), announce.offset, announce.length);
  if (!known) {
    return channel_.send(
        wire::Release{announce.slot, announce.generation, known.error().errno_value});
  }
  bool land_now = false;
  {
    std::lock_guard lock(mutex_);
    entry.announce = announce;
    entry.attempts = 0;
    entry.has_landing = false;
    ranges_.add(announce.slot, {announce.node, announce.offset, announce.offset + announce.length});
    if (ranges_.overlaps_earlier(announce.slot)) {
      entry.state = ChunkState::kHeldBack;
      held_back_.push_back(announce.slot);
    } else if (inline_bytes.empty() || behind_starved_locked(announce.slot)) {
      queue_locked(announce.slot);
    } else {
      entry.state = ChunkState::kPulling;
      ++pulling_;
      land_now = true;
    }
  }
  if (!land_now) return {};
  const Status reserved = reserve(entry);
  if (!reserved && reserved.error().errno_value == EAGAIN) {
    std::lock_guard lock(mutex_);
    --pulling_;
    queue_locked(announce.slot);
    return {};
  }
  if (reserved) copy_to_pieces(inline_bytes, entry.landing);
  land(announce.slot, reserved ? verify(entry) : reserved);
  return {};
}

// Memory that is scarce goes to a file's bytes in the order of their offsets: a reader that
// consumes the file frees nothing before it has got the first of them.
bool IncomingSession::behind_starved_locked(uint32_t slot) const {
  const auto& mine = ranges_[slot];
  return starved_.any_of([&](uint32_t other) {
    return ranges_[other].node == mine.node && ranges_[other].begin < mine.begin;
  });
}

// The time in which some chunk has to come begins when there is one to be waited for.
void IncomingSession::begin_waiting_locked() {
  if (queue_.empty() && urgent_queue_.empty() && fetching_ == 0) pull_progress_ = Clock::now();
}

void IncomingSession::queue_locked(uint32_t slot) {
  ChunkEntry& entry = chunks_[slot];
  begin_waiting_locked();
  entry.state = ChunkState::kQueued;
  (entry.announce.length <= kUrgentMaxBytes ? urgent_queue_ : queue_).push_back(slot);
  wake_mover_locked();
}

void IncomingSession::wake_mover_locked() {
  if (transport_ != wire::Transport::kVerbs) {
    queue_changed_.notify_one();
  } else if (verbs_puller_) {
    verbs_puller_->pulls_queued();
  }
}

void IncomingSession::hurry(uint64_t node, uint64_t offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  begin_waiting_locked();
  const auto wanted = [&](uint32_t slot) {
    const auto& range = ranges_[slot];
    return range.node == node && range.begin < offset + length && offset < range.end;
  };
  queue_.move_to(urgent_queue_, wanted);
  starved_.move_to(urgent_queue_, wanted);  // the store may have something left for a reader
  wake_mover_locked();
  queue_changed_.notify_all();
}

void IncomingSession::space_freed() {
  std::lock_guard lock(mutex_);
  ++space_events_;
  begin_waiting_locked();
  while (!starved_.empty()) {
    const uint32_t slot = starved_.pop_back();
    (chunks_[slot].announce.length <= kUrgentMaxBytes ? urgent_queue_ : queue_).push_front(slot);
  }
  wake_mover_locked();
  queue_changed_.notify_all();
}

// ---- Chunks: pulled, verified, landed, released ------------------------------------------------

// An error other than EAGAIN means that nothing is left to be given back to the sink.
Status IncomingSession::reserve(ChunkEntry& entry) {
  const auto& announce = entry.announce;
  auto landing = sink_.reserve(key(announce.node), announce.offset, announce.length);
  if (!landing) {
    if (landing.error().errno_value == EAGAIN) {
      ++waits_for_space_;
    } else {
      sink_.abandon_announced(key(announce.node), announce.offset, announce.length,
                              landing.error());
    }
    return failure(landing.error());
  }
  entry.landing = *landing;
  entry.has_landing = true;
  return {};
}

bool IncomingSession::take(wire::Transport mover, Pull& pull, bool wait) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (ended_) return false;
    if (mover != transport_) {
      if (!wait) return false;
      queue_changed_.wait(lock);
      continue;
    }
    SlotRing& ring = urgent_queue_.empty() ? queue_ : urgent_queue_;
    if (ring.empty()) {
      tell_releases_locked();
      if (!wait) return false;
      queue_changed_.wait(lock);
      continue;
    }
    const uint32_t slot = ring.pop_front();
    ChunkEntry& entry = chunks_[slot];
    if (!entry.has_landing && behind_starved_locked(slot)) {
      starved_.push_back(slot);
      continue;
    }
    entry.state = ChunkState::kPulling;
    ++pulling_;
    const uint64_t space_events = space_events_;
    lock.unlock();
    const Status reserved = entry.has_landing ? Status{} : reserve(entry);
    if (reserved) {
      const auto& announce = entry.announce;
      pull = {announce.slot, announce.generation, announce.slot_offset, announce.length,
              std::span(entry.landing.pieces).first(entry.landing.piece_count)};
      ++fetching_;
      return true;
    }
    if (reserved.error().errno_value != EAGAIN) {
      land(slot, reserved);
      lock.lock();
      continue;
    }
    // Behind it may be the very chunk whose reader will free memory: other files' go on.
    lock.lock();
    entry.state = ChunkState::kQueued;
    --pulling_;
    if (space_events != space_events_) {
      ring.push_front(slot);
    } else {
      starved_.push_back(slot);
    }
  }
}

void IncomingSession::lost(const Pull& pull) {
  --fetching_;
  pull_again(pull.slot);
}

void IncomingSession::pull_again(uint32_t slot) {
  ++pulled_again_;
  std::lock_guard lock(mutex_);
  chunks_[slot].state = ChunkState::kQueued;
  --pulling_;
  urgent_queue_.push_front(slot);
  wake_mover_locked();
}

void IncomingSession::completed(const Pull& pull) {
  --fetching_;
  ChunkEntry& entry = chunks_[pull.slot];
  const Status verified = verify(entry);
  if (!verified && ++entry.attempts < kAttemptsMax) {
    spdlog::warn("{}; pulling it again", verified.error().message);
    return pull_again(pull.slot);
  }
  land(pull.slot, verified);
}

Status IncomingSession::verify(const ChunkEntry& entry) const {
  uint32_t crc = 0;
  for (uint32_t i = 0; i < entry.landing.piece_count; ++i) {
    const Landing::Piece& piece = entry.landing.pieces[i];
    crc = crc32c({piece.data, piece.length}, crc);
  }
  if (crc == entry.announce.crc) return {};
  return failure(EIO, "chunk at offset " + std::to_string(entry.announce.offset) + " from " +
                          options_.hello.source_name + ": checksum mismatch");
}

// The end of a chunk, good or bad: readers may have it, its slot goes back to the source.
void IncomingSession::land(uint32_t slot, Status status) {
  ChunkEntry& entry = chunks_[slot];
  const wire::Announce announce = entry.announce;
  if (status) {
    status = sink_.land(entry.landing,
                        wire::chunk_digest(announce.offset, announce.length, announce.crc));
  } else if (entry.has_landing) {
    sink_.abandon(entry.landing, status.error());
  }
  {
    std::lock_guard lock(mutex_);
    entry.state = ChunkState::kIdle;
    entry.has_landing = false;
    ranges_.remove(slot);
    pull_progress_ = Clock::now();
    for (size_t left = held_back_.size(); left > 0; --left) {
      const uint32_t held_back = held_back_.pop_front();
      if (ranges_.overlaps_earlier(held_back)) {
        held_back_.push_back(held_back);
      } else {
        queue_locked(held_back);
      }
    }
  }
  if (status) {
    received_bytes_ += announce.length;
    ++chunks_landed_;
  }
  const int errno_value = status ? 0 : status.error().errno_value;
  (void)channel_.send_with_next(wire::Release{slot, announce.generation, errno_value});
  // Only now, so that the last chunk under way finds the releases of all others appended.
  std::lock_guard lock(mutex_);
  --pulling_;
  ++releases_held_;
  tell_releases_locked();
}

// A message for each chunk would cost as much as the chunk, where chunks are small: releases go out
// together while more of them will follow soon.
void IncomingSession::tell_releases_locked() {
  const bool more_follow = pulling_ > 0 || !queue_.empty() || !urgent_queue_.empty();
  const size_t held_max = options_.hello.slot_count / kSlotsPerHeldRelease;
  if (releases_held_ == 0 || (more_follow && releases_held_ < held_max)) return;
  releases_held_ = 0;
  channel_.push();
}

}  // namespace ppmr
