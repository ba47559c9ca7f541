#include "rdma_stream/incoming_session.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "buffer_pool/crc32c.h"
#include "rdma_stream/handshake.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A checksum that is wrong so often is not the network's.
constexpr uint32_t kAttemptsMax = 3;
// So many times the peer timeout without any chunk coming, though they are announced and the source
// is alive: its data connections do not work. Long enough for a slow link's largest chunk.
constexpr int kPullTimeoutFactor = 3;
// Longer chunks wait behind shorter ones.
constexpr uint32_t kUrgentMaxBytes = 64 << 10;

ChannelOptions channel_options(milliseconds peer_timeout) {
  ChannelOptions options;
  options.heartbeat_interval = std::clamp(peer_timeout / 10, milliseconds(5), milliseconds(1000));
  options.silence_limit = peer_timeout / 2;
  return options;
}

void copy_to_pieces(std::span<const std::byte> bytes, const Landing& landing) {
  for (uint32_t i = 0; i < landing.piece_count; ++i) {
    const Landing::Piece& piece = landing.pieces[i];
    std::copy_n(bytes.begin(), piece.length, piece.data);
    bytes = bytes.subspan(piece.length);
  }
}

}  // namespace

IncomingSession::IncomingSession(Options options, Sink& sink)
    : options_(std::move(options)),
      sink_(sink),
      chunks_(options_.hello.slot_count),
      ranges_(options_.hello.slot_count),
      urgent_queue_(options_.hello.slot_count),
      queue_(options_.hello.slot_count),
      held_back_(options_.hello.slot_count),
      starved_(options_.hello.slot_count),
      channel_(channel_options(options_.peer_timeout),
               [this](wire::MessageType type, std::span<const std::byte> body) {
                 return handle(type, body);
               }) {
  TcpPuller::Options puller;
  puller.stream_count = options_.hello.stream_count;
  puller.read_timeout = options_.peer_timeout / 4;
  puller_ = std::make_unique<TcpPuller>(puller, static_cast<PullQueue&>(*this));
}

IncomingSession::~IncomingSession() { end(Error{ECANCELED, "the target was closed"}); }

// ---- Connections
// ---------------------------------------------------------------------------------

Status IncomingSession::run_control(std::shared_ptr<Connection> connection,
                                    uint64_t source_received_sequence,
                                    const std::string& target_name) {
  channel_.disconnect();  // a half-dead connection may still be there: the new one replaces it
  std::lock_guard control(control_mutex_);
  if (auto reason = over()) return failure(*reason);
  // Only now, when nothing comes over an earlier connection any more, is our number final.
  const wire::Welcome welcome{options_.token, channel_.received_sequence(), target_name};
  if (auto sent = send_handshake(*connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  const std::string peer = connection->peer();
  const Error reason = channel_.run(std::move(connection), source_received_sequence);
  if (!over()) spdlog::info("connection from {} lost: {}", peer, reason.message);
  return {};
}

Status IncomingSession::attach_stream(uint32_t stream, std::shared_ptr<Connection> connection) {
  return puller_->attach(stream, std::move(connection));
}

std::optional<Error> IncomingSession::over() const {
  {
    std::lock_guard lock(mutex_);
    if (over_) return over_;
    const size_t fetching = fetching_;
    const bool wanted = !queue_.empty() || !urgent_queue_.empty() || fetching > 0;
    const bool busy_here = pulling_ > fetching;  // verifying, landing: our own time
    if (wanted && !busy_here &&
        Clock::now() - pull_progress_ > kPullTimeoutFactor * options_.peer_timeout) {
      return Error{EIO, "the source " + options_.hello.source_name +
                            " announces bytes, but no data connection brings them"};
    }
  }
  if (auto failed = channel_.failed()) return failed;
  if (Clock::now() - channel_.last_heard() > options_.peer_timeout) {
    return Error{EIO, "no word from the source " + options_.hello.source_name + " for " +
                          std::to_string(options_.peer_timeout.count()) + " ms"};
  }
  return std::nullopt;
}

void IncomingSession::end(const Error& reason) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    if (!over_) over_ = reason;
  }
  queue_changed_.notify_all();
  channel_.fail(reason);
  puller_->finish();
  std::lock_guard control(control_mutex_);
  for (ChunkEntry& entry : chunks_) {
    if (entry.state == ChunkState::kIdle) continue;
    if (entry.has_landing) {
      sink_.abandon(entry.landing, reason);
    } else {
      sink_.abandon_announced(key(entry.announce.node), entry.announce.offset,
                              entry.announce.length, reason);
    }
    entry.state = ChunkState::kIdle;
  }
}

// ---- Messages of the source
// ----------------------------------------------------------------------

template <typename Message>
Status IncomingSession::apply(std::span<const std::byte> body,
                              Status (Sink::*operation)(SessionId, const Message&)) {
  auto message = wire::decode<Message>(body);
  if (!message) return failure(message.error());
  // The sink has failed the checkpoint; the session goes on for the others.
  if (auto status = (sink_.*operation)(options_.id, *message); !status) {
    spdlog::warn("from {}: {}", options_.hello.source_name, status.error().message);
  }
  return {};
}

template <typename Message>
Status IncomingSession::apply_request(std::span<const std::byte> body,
                                      Status (Sink::*operation)(SessionId, const Message&)) {
  auto message = wire::decode<Message>(body);
  if (!message) return failure(message.error());
  const Status status = (sink_.*operation)(options_.id, *message);
  if (message->request == 0) return {};
  wire::Outcome outcome;
  outcome.request = message->request;
  if (!status) {
    outcome.errno_value = status.error().errno_value;
    outcome.text = status.error().message.substr(0, wire::kTextMaxBytes);
  }
  return channel_.send(outcome);
}

Status IncomingSession::handle(wire::MessageType type, std::span<const std::byte> body) {
  using wire::MessageType;
  switch (type) {
    case MessageType::kClaim:
      return apply_request(body, &Sink::claim);
    case MessageType::kMake:
      return apply(body, &Sink::make);
    case MessageType::kRemove:
      return apply(body, &Sink::remove);
    case MessageType::kRename:
      return apply_request(body, &Sink::rename);
    case MessageType::kSetAttributes:
      return apply(body, &Sink::set_attributes);
    case MessageType::kTruncate:
      return apply(body, &Sink::truncate);
    case MessageType::kPunchHole:
      return apply(body, &Sink::punch_hole);
    case MessageType::kOpenedForWrite:
      return apply(body, &Sink::opened_for_write);
    case MessageType::kClosed:
      return apply(body, &Sink::closed);
    case MessageType::kForget:
      return apply(body, &Sink::forget);
    case MessageType::kManifestEntry:
      return apply(body, &Sink::manifest_entry);
    case MessageType::kSeal:
      return apply_request(body, &Sink::seal);
    case MessageType::kAbandon:
      return apply(body, &Sink::abandon_checkpoint);
    case MessageType::kSealRefused:
      return apply(body, &Sink::seal_refused);
    case MessageType::kAnnounce: {
      auto message = wire::decode<wire::Announce>(body);
      return message ? handle_announce(*message, {}) : failure(message.error());
    }
    case MessageType::kAnnounceInline: {
      std::span<const std::byte> bytes;
      auto message = wire::decode<wire::AnnounceInline>(body, &bytes);
      if (!message) return failure(message.error());
      if (bytes.empty() || bytes.size() > wire::kInlineMaxBytes ||
          bytes.size() != message->length) {
        return failure(EPROTO, "inline chunk: " + std::to_string(bytes.size()) +
                                   " bytes instead of " + std::to_string(message->length));
      }
      return handle_announce(*message, bytes);
    }
    case MessageType::kReadBack: {
      auto message = wire::decode<wire::ReadBack>(body);
      return message ? handle_read_back(*message) : failure(message.error());
    }
    case MessageType::kGoodbye: {
      std::lock_guard lock(mutex_);
      over_ = Error{EIO, "the source " + options_.hello.source_name + " ended"};
      return {};
    }
    default:
      return failure(EPROTO, "unexpected message " + std::to_string(static_cast<int>(type)) +
                                 " from the source");
  }
}

Status IncomingSession::handle_read_back(const wire::ReadBack& message) {
  if (message.length > wire::kReadBackMaxBytes)
    return failure(EPROTO, "read back: too much at once");
  std::vector<std::byte> bytes(message.length);
  auto count = sink_.read(key(message.node), message.offset, bytes);
  wire::ReadBackReply reply;
  reply.request = message.request;
  reply.errno_value = count ? 0 : count.error().errno_value;
  return channel_.send(reply, std::span(bytes).first(count.value_or(0)));
}

// ---- Chunks: announced, held back, queued
// --------------------------------------------------------

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
    ranges_[announce.slot] = {announce.node, announce.offset, announce.offset + announce.length,
                              ++last_order_};
    if (overlaps_earlier_locked(announce.slot)) {
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

// Later bytes win: a chunk waits for those announced before it that touch the same bytes.
bool IncomingSession::overlaps_earlier_locked(uint32_t slot) const {
  const Range mine = ranges_[slot];
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& other) {
    return other.order != 0 && other.order < mine.order && other.node == mine.node &&
           other.begin < mine.end && mine.begin < other.end;
  });
}

// Memory that is scarce goes to a file's bytes in the order of their offsets: a reader that
// consumes the file frees nothing before it has got the first of them.
bool IncomingSession::behind_starved_locked(uint32_t slot) const {
  const Range& mine = ranges_[slot];
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
  queue_changed_.notify_one();
}

void IncomingSession::hurry(uint64_t node, uint64_t offset, uint64_t length) {
  std::lock_guard lock(mutex_);
  begin_waiting_locked();
  const auto wanted = [&](uint32_t slot) {
    const Range& range = ranges_[slot];
    return range.node == node && range.begin < offset + length && offset < range.end;
  };
  queue_.move_to(urgent_queue_, wanted);
  starved_.move_to(urgent_queue_, wanted);  // the store may have something left for a reader
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
  queue_changed_.notify_all();
}

// ---- Chunks: pulled, verified, landed, released
// --------------------------------------------------

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

bool IncomingSession::take(Pull& pull, bool wait) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (ended_) return false;
    SlotRing& ring = urgent_queue_.empty() ? queue_ : urgent_queue_;
    if (ring.empty()) {
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
  queue_changed_.notify_one();
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
    ranges_[slot].order = 0;
    --pulling_;
    pull_progress_ = Clock::now();
    for (size_t left = held_back_.size(); left > 0; --left) {
      const uint32_t held_back = held_back_.pop_front();
      if (overlaps_earlier_locked(held_back)) {
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
  (void)channel_.send(wire::Release{slot, announce.generation, errno_value});
}

// ---- Messages to the source
// ----------------------------------------------------------------------
//
// None of these waits: they come from threads that serve all sessions, or with the store's lock
// held.

Status IncomingSession::request_seal(uint64_t checkpoint) {
  return channel_.post(wire::SealRequest{checkpoint});
}

void IncomingSession::tell_removed(uint64_t checkpoint) {
  if (auto told = channel_.post(wire::CheckpointRemoved{checkpoint}); !told) {
    channel_.fail(Error{EIO, told.error().message});
  }
}

void IncomingSession::tell_space(const wire::Space& space) { (void)channel_.post(space); }

SessionReport IncomingSession::report() const {
  SessionReport report;
  report.id = options_.id;
  report.source_name = options_.hello.source_name;
  report.peer = channel_.peer();
  report.connected = channel_.connected();
  const auto now = Clock::now();
  report.silence = std::chrono::duration_cast<milliseconds>(now - channel_.last_heard());
  report.age = std::chrono::duration_cast<milliseconds>(now - opened_at_);
  report.received_bytes = received_bytes_;
  report.chunks = chunks_landed_;
  report.pulled_again = pulled_again_;
  report.waits_for_space = waits_for_space_;
  std::lock_guard lock(mutex_);
  report.queued_chunks = queue_.size() + urgent_queue_.size() + held_back_.size() + starved_.size();
  report.pulling_chunks = pulling_;
  return report;
}

}  // namespace ppmr
