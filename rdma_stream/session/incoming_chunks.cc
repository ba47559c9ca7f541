// The steps of a chunk at the target: announced, queued, pulled, verified, landed, released.
#include <algorithm>
#include <cassert>
#include <exception>

#include "rdma_stream/session/incoming_session.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// A chunk fails after this many pulls of wrong bytes. Damage by the network does not repeat so
// often.
constexpr uint32_t kAttemptsMax = 3;
// Chunks up to this length are pulled before longer ones.
constexpr uint32_t kUrgentMaxBytes = 64 << 10;
// The number of requested ranges that are recorded. A further range replaces the oldest; the bytes
// of the oldest then arrive without priority.
constexpr size_t kWantedMax = 1024;
// While readers read scattered offsets of a file, at most this many chunks of the usual queue are
// in flight, so an urgent chunk does not wait behind a whole window of them. Readers count as
// scattered if, within the last second, a chunk arrived that was requested out of the order of its
// file.
constexpr size_t kFetchingMaxForLeaps = 2;
constexpr std::chrono::seconds kLeapsLast{1};
// The target may hold back one release for each of this many slots, to send several releases
// together.
constexpr size_t kSlotsPerHeldRelease = 8;

void copy_to_pieces(std::span<const std::byte> bytes, const Landing& landing) {
  for (uint32_t i = 0; i < landing.piece_count; ++i) {
    const Landing::Piece& piece = landing.pieces[i];
    std::copy_n(bytes.begin(), piece.length, piece.data);
    bytes = bytes.subspan(piece.length);
  }
}

bool is_valid_compression(const wire::Announce& announce) {
  if (announce.compression == wire::Compression::kNone) {
    return announce.slot_length == announce.length;
  }
  return (announce.compression == wire::Compression::kLz4 ||
          announce.compression == wire::Compression::kZstd) &&
         announce.slot_length > 0 && announce.slot_length < announce.length &&
         announce.length <= wire::kCompressedMaxBytes;
}

}  // namespace

// ---- Announced, queued -------------------------------------------------------------------------

Status IncomingSession::handle_announce(const wire::Announce& announce,
                                        std::span<const std::byte> inline_bytes) {
  if (announce.slot >= chunks_.size() || announce.length == 0 ||
      uint64_t{announce.slot_offset} + announce.length > options_.hello.chunk_size_bytes ||
      announce.offset > uint64_t{INT64_MAX} - announce.length) {
    return failure(EPROTO, "announcement of slot " + std::to_string(announce.slot) +
                               ": slot, offset or length out of range");
  }
  if (!is_valid_compression(announce)) {
    return failure(EPROTO, "announcement of slot " + std::to_string(announce.slot) +
                               ": unknown compression, or its length is out of range");
  }
  ChunkEntry& entry = chunks_[announce.slot];
  {
    MutexLock lock(mutex_);
    if (entry.state != ChunkState::kIdle) {
      return failure(EPROTO, "the source announced slot " + std::to_string(announce.slot) +
                                 " again before the target released it");
    }
  }
  const auto known = sink_.announced(key(announce.node), announce.offset, announce.length);
  if (!known) {
    return channel_.send(
        wire::Release{announce.slot, announce.generation, known.error().errno_value});
  }
  bool land_now = false;
  {
    MutexLock lock(mutex_);
    assert(entry.state == ChunkState::kIdle && !entry.has_landing && "the slot is in use");
    entry.announce = announce;
    entry.attempts = 0;
    entry.has_landing = false;
    entry.wanted = take_wanted_locked(announce.node, announce.offset, announce.length);
    const bool follows =
        last_announced_.node == announce.node && last_announced_.end == announce.offset;
    if (entry.wanted && !follows) last_leap_ = Clock::now();
    last_announced_ = {announce.node, announce.offset, announce.offset + announce.length};
    if (inline_bytes.empty() || must_starve_locked(announce.slot)) {
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
    MutexLock lock(mutex_);
    assert(pulling_ > 0 && "more chunks ended than began");
    --pulling_;
    queue_locked(announce.slot);
    return {};
  }
  if (reserved) copy_to_pieces(inline_bytes, entry.landing);
  land(announce.slot, reserved ? verify(entry) : reserved);
  return {};
}

// Returns whether a chunk of the same file with a lower offset waits for memory. Scarce memory goes
// to a file's bytes in the order of their offsets, because a reader that consumes the file reads
// them in this order, and only then is their memory free.
bool IncomingSession::must_starve_locked(uint32_t slot) const {
  const wire::Announce& chunk = chunks_[slot].announce;
  return starved_.any_of([&](uint32_t other) {
    return chunks_[other].announce.node == chunk.node &&
           chunks_[other].announce.offset < chunk.offset;
  });
}

// Starts the time limit for payload (see over()) if the target was not waiting for any bytes
// before.
void IncomingSession::begin_waiting_locked() {
  if (queue_.empty() && urgent_queue_.empty() && fetching_ == 0) pull_progress_ = Clock::now();
}

bool IncomingSession::is_urgent_locked(uint32_t slot) const {
  return chunks_[slot].wanted || chunks_[slot].announce.length <= kUrgentMaxBytes;
}

void IncomingSession::queue_locked(uint32_t slot) {
  ChunkEntry& entry = chunks_[slot];
  assert(entry.state != ChunkState::kQueued && "the chunk is in two queues");
  assert(!entry.has_landing && "a queued chunk has memory already");
  begin_waiting_locked();
  entry.state = ChunkState::kQueued;
  (is_urgent_locked(slot) ? urgent_queue_ : queue_).push_back(slot);
  wake_mover_locked();
}

// Returns whether want() has requested bytes of the range, and removes these bytes from the
// requests. The source sends a request from front to back, so only the front of a request is
// removed.
bool IncomingSession::take_wanted_locked(uint64_t node, uint64_t offset, uint64_t length) {
  bool found = false;
  for (FileRange& wanted : wanted_) {
    if (wanted.node != node || wanted.end <= offset || offset + length <= wanted.begin) continue;
    found = true;
    if (offset <= wanted.begin) wanted.begin = std::min(offset + length, wanted.end);
  }
  if (found) std::erase_if(wanted_, [](const FileRange& one) { return one.begin == one.end; });
  return found;
}

void IncomingSession::want(uint64_t node, uint64_t offset, uint64_t length) {
  constexpr uint64_t kEndMax = INT64_MAX;
  if (length == 0 || length > kEndMax || offset > kEndMax - length) return;
  {
    MutexLock lock(mutex_);
    const bool requested = std::any_of(wanted_.begin(), wanted_.end(), [&](const FileRange& one) {
      return one.node == node && one.begin <= offset && offset + length <= one.end;
    });
    if (requested) return;
    if (wanted_.size() == kWantedMax) wanted_.pop_front();
    wanted_.push_back({node, offset, offset + length});
  }
  if (channel_.post(wire::Want{node, offset, length})) return;
  // The request was not sent, so another read may request the same bytes.
  MutexLock lock(mutex_);
  (void)take_wanted_locked(node, offset, length);
}

void IncomingSession::wake_mover_locked() {
  if (transport_ == wire::Transport::kTcp || transport_ == wire::Transport::kNone) {
    queue_changed_.notify_one();
  } else if (offered_puller_) {
    offered_puller_->pulls_queued();
  }
}

void IncomingSession::prioritize(uint64_t node, uint64_t offset, uint64_t length) {
  MutexLock lock(mutex_);
  begin_waiting_locked();
  const auto wanted = [&](uint32_t slot) {
    const wire::Announce& chunk = chunks_[slot].announce;
    return chunk.node == node && chunk.offset < offset + length &&
           offset < chunk.offset + chunk.length;
  };
  queue_.move_to(urgent_queue_, wanted);
  // Also retry the starved chunks, because a reader waits for them.
  starved_.move_to(urgent_queue_, wanted);
  wake_mover_locked();
  queue_changed_.notify_all();
}

void IncomingSession::space_freed() {
  MutexLock lock(mutex_);
  ++space_events_;
  begin_waiting_locked();
  while (!starved_.empty()) {
    const uint32_t slot = starved_.pop_back();
    (is_urgent_locked(slot) ? urgent_queue_ : queue_).push_front(slot);
  }
  wake_mover_locked();
  queue_changed_.notify_all();
}

// ---- Pulled, verified, landed, released --------------------------------------------------------

// Reserves memory for a chunk. After an error other than EAGAIN the sink has abandoned the chunk.
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

bool IncomingSession::Port::take(Pull& pull, bool wait) try {
  return session_.take(transport_, pull, wait);
} catch (const std::exception& exception) {
  session_.channel_.fail(Error{EIO, std::string("cannot take a chunk: ") + exception.what()});
  return false;
}

void IncomingSession::Port::completed(const Pull& pull) try {
  session_.completed(pull);
} catch (const std::exception& exception) {
  session_.channel_.fail(Error{EIO, std::string("cannot store a chunk: ") + exception.what()});
}

void IncomingSession::Port::lost(const Pull& pull) { session_.lost(pull); }

bool IncomingSession::take(wire::Transport mover, Pull& pull, bool wait) {
  MutexLock lock(mutex_);
  for (;;) {
    if (ended_) return false;
    if (mover != transport_) {
      if (!wait) return false;
      queue_changed_.wait(mutex_);
      continue;
    }
    SlotRing& ring = urgent_queue_.empty() ? queue_ : urgent_queue_;
    if (ring.empty()) {
      push_releases_locked();
      if (!wait) return false;
      queue_changed_.wait(mutex_);
      continue;
    }
    // While readers read at scattered offsets, a mover that does not wait gets no further pull of
    // the usual queue until a pull in flight has ended. A TCP mover waits if it has none in flight.
    if (!wait && &ring == &queue_ && fetching_ >= kFetchingMaxForLeaps &&
        Clock::now() - last_leap_ < kLeapsLast) {
      return false;
    }
    const uint32_t slot = ring.pop_front();
    ChunkEntry& entry = chunks_[slot];
    if (!entry.has_landing && must_starve_locked(slot)) {
      starved_.push_back(slot);
      continue;
    }
    assert(entry.state == ChunkState::kQueued && "a chunk that is not queued is in a queue");
    entry.state = ChunkState::kPulling;
    ++pulling_;
    assert(pulling_ <= chunks_.size() && "more chunks are pulled than there are slots");
    const uint64_t space_events = space_events_;
    lock.unlock();
    const Status reserved = entry.has_landing ? Status{} : reserve(entry);
    if (reserved) {
      const auto& announce = entry.announce;
      assert(announce.slot == slot && announce.slot_length <= announce.length &&
             "a chunk is longer in its slot than in its file");
      assert(entry.landing.piece_count <= entry.landing.pieces.size());
      pull = {announce.slot, announce.generation, announce.slot_offset, announce.slot_length,
              std::span(entry.landing.pieces).first(entry.landing.piece_count)};
      ++fetching_;
      return true;
    }
    if (reserved.error().errno_value != EAGAIN) {
      land(slot, reserved);
      lock.lock();
      continue;
    }
    // Continue with other files: a reader may need one of their chunks before it can free memory.
    lock.lock();
    assert(entry.state == ChunkState::kPulling && pulling_ > 0 && !entry.has_landing &&
           "another thread changed a chunk that this one pulls");
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
  assert(fetching_ > 0 && "more pulls ended than began");
  --fetching_;
  pull_again(pull.slot);
}

void IncomingSession::pull_again(uint32_t slot) {
  ++pulled_again_;
  MutexLock lock(mutex_);
  assert(chunks_[slot].state == ChunkState::kPulling && pulling_ > 0 &&
         "a pull ended that was not in progress");
  chunks_[slot].state = ChunkState::kQueued;
  --pulling_;
  urgent_queue_.push_front(slot);
  wake_mover_locked();
}

void IncomingSession::completed(const Pull& pull) {
  assert(fetching_ > 0 && "more pulls ended than began");
  --fetching_;
  ChunkEntry& entry = chunks_[pull.slot];
  assert(entry.has_landing && entry.announce.generation == pull.generation &&
         "a pull of an earlier chunk of this slot ended");
  channel_.note_received();
  const Status verified = verify(entry);
  if (!verified && ++entry.attempts < kAttemptsMax) {
    warn(Error{EIO, verified.error().message + "; pulling it again"});
    return pull_again(pull.slot);
  }
  land(pull.slot, verified);
}

// Decrypts the chunk and decompresses it into its place. If this fails, the target pulls all bytes
// again.
Status IncomingSession::verify(const ChunkEntry& entry) {
  const wire::Announce& announce = entry.announce;
  const Status verified =
      announce.compression == wire::Compression::kNone
          ? options_.protection->verify(
                {announce.node, announce.offset, announce.length}, announce.check,
                std::span(entry.landing.pieces).first(entry.landing.piece_count))
          : options_.decompressor->unpack(*options_.protection, announce, entry.landing);
  if (verified) return {};
  ++wrong_chunks_;
  return failure(EIO, "chunk at offset " + std::to_string(announce.offset) + " from " +
                          options_.hello.source_name + ": " + verified.error().message);
}

// Finishes a chunk: passes the result to the sink and releases the chunk's slot.
void IncomingSession::land(uint32_t slot, Status status) {
  ChunkEntry& entry = chunks_[slot];
  const wire::Announce announce = entry.announce;
  // The sink ends the landing in every case.
  const bool has_landing = std::exchange(entry.has_landing, false);
  if (status) {
    status = sink_.land(entry.landing,
                        wire::chunk_digest(announce.offset, announce.length, announce.check));
  } else if (has_landing) {
    sink_.abandon(entry.landing, status.error());
  }
  {
    MutexLock lock(mutex_);
    assert(entry.state == ChunkState::kPulling && "a chunk ended twice");
    entry.state = ChunkState::kIdle;
    pull_progress_ = Clock::now();
  }
  if (status) {
    received_bytes_ += announce.length;
    wire_bytes_ += announce.slot_length;
    ++chunks_landed_;
  }
  const int errno_value = status ? 0 : status.error().errno_value;
  (void)channel_.send_with_next(wire::Release{slot, announce.generation, errno_value});
  // A pull stays in `pulling_` until its Release is in the outbox. So the pull that ends last also
  // pushes the releases that other pulls left in the outbox.
  MutexLock lock(mutex_);
  assert(pulling_ > 0 && "more chunks ended than began");
  --pulling_;
  ++releases_held_;
  // The source may wait for a small chunk, for example in fsync(2) or a commit. It must not also
  // wait for the chunks of other files.
  const bool is_urgent = announce.length <= kUrgentMaxBytes && urgent_queue_.empty();
  push_releases_locked(is_urgent);
}

// A write to the connection for each Release would cost as much as a small chunk. So releases wait
// and are sent together, as long as more releases will follow soon.
void IncomingSession::push_releases_locked(bool at_once) {
  const bool more_follow = pulling_ > 0 || !queue_.empty() || !urgent_queue_.empty();
  const size_t held_max = options_.hello.slot_count / kSlotsPerHeldRelease;
  if (releases_held_ == 0 || (!at_once && more_follow && releases_held_ < held_max)) return;
  releases_held_ = 0;
  channel_.push();
}

}  // namespace ppmr
