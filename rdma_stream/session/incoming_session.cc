#include "rdma_stream/session/incoming_session.h"

#include <algorithm>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace

IncomingSession::IncomingSession(Options options, Sink& sink)
    : options_(std::move(options)),
      sink_(sink),
      chunks_(options_.hello.slot_count),
      urgent_queue_(options_.hello.slot_count),
      queue_(options_.hello.slot_count),
      starved_(options_.hello.slot_count),
      last_attempts_(options_.hello.stream_count),
      channel_(options_.channel, [this](wire::MessageType type, std::span<const std::byte> body) {
        return handle(type, body);
      }) {
  TcpPuller::Options puller;
  puller.stream_count = options_.hello.stream_count;
  puller.timings = options_.channel.timings;
  tcp_puller_ = std::make_unique<TcpPuller>(puller, tcp_port_);
}

IncomingSession::~IncomingSession() { end(Error{ECANCELED, "the target was closed"}); }

// ---- Connections -------------------------------------------------------------------------------

Status IncomingSession::run_control(std::shared_ptr<Connection> connection,
                                    uint64_t source_received_sequence,
                                    const std::string& target_name) {
  channel_.disconnect();  // ends the earlier connection, in case its loss was not noticed
  MutexLock control(control_mutex_);
  if (auto reason = over()) return failure(*reason);
  // The last received sequence number is final from here on: earlier connections deliver no more
  // messages.
  const wire::Welcome welcome{options_.token, channel_.received_sequence(),
                              options_.protection->kind(), target_name};
  if (auto sent = send_handshake(*connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  const std::string peer = connection->peer();
  const Error reason = channel_.run(std::move(connection), source_received_sequence);
  if (!over()) spdlog::info("connection from {} lost: {}", peer, reason.message);
  return {};
}

bool IncomingSession::proves(const wire::DataHello& hello) const {
  return hello.session == session_token() &&
         equal_secrets(hello.proof, session_proof(Prover::kSource, token(), hello.session,
                                                  hello.stream, hello.attempt));
}

bool IncomingSession::accept_attempt(const wire::DataHello& hello) {
  MutexLock lock(mutex_);
  if (hello.stream >= last_attempts_.size()) return true;  // attach_stream() fails
  if (hello.attempt <= last_attempts_[hello.stream]) return false;
  last_attempts_[hello.stream] = hello.attempt;
  return true;
}

Status IncomingSession::attach_stream(uint32_t stream, std::shared_ptr<Connection> connection) {
  return tcp_puller_->attach(stream, std::move(connection));
}

std::optional<Error> IncomingSession::over() const {
  {
    MutexLock lock(mutex_);
    if (over_) return over_;
    const size_t fetching = fetching_;
    const bool expects_bytes = !queue_.empty() || !urgent_queue_.empty() || fetching > 0;
    const bool landing = pulling_ > fetching;  // bytes have arrived and are being processed
    if (expects_bytes && !landing &&
        Clock::now() - pull_progress_ >
            std::max(options_.channel.timings.no_payload_max, patience_.load())) {
      return Error{EIO, "the source " + options_.hello.source_name +
                            " announces bytes, but no data connection delivers them"};
    }
  }
  if (auto failed = channel_.failed()) return failed;
  if (Clock::now() - channel_.last_received() > silence_max()) {
    return Error{EIO, "source " + options_.hello.source_name + " was silent for " +
                          std::to_string(silence_max().count()) + " ms"};
  }
  return std::nullopt;
}

void IncomingSession::end(const Error& reason) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    if (!over_) over_ = reason;
  }
  queue_changed_.notify_all();
  channel_.fail(reason);
  tcp_puller_->finish();
  // Needs no lock: offered_puller_ does not change after `ended_` has become true.
  if (offered_puller_) offered_puller_->finish();
  MutexLock control(control_mutex_);
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

// ---- Messages from the source ------------------------------------------------------------------

template <typename Message>
Status IncomingSession::apply(std::span<const std::byte> body,
                              Status (Sink::*operation)(SessionId, const Message&)) {
  auto message = wire::decode<Message>(body);
  if (!message) return failure(message.error());
  // After an error the sink has already failed the checkpoint. The session continues for its other
  // checkpoints.
  if (auto status = (sink_.*operation)(options_.id, *message); !status) {
    warn(status.error());
  }
  return {};
}

// A source can cause errors as fast as it sends messages.
void IncomingSession::warn(const Error& error) {
  if (const uint64_t more = warnings_.take_suppressed(); more > 0) {
    spdlog::warn("{} more warnings about {}", more, options_.hello.source_name);
  }
  if (warnings_.allows()) {
    spdlog::warn("message from {}: {}", options_.hello.source_name, error.message);
  }
}

template <typename Message>
Status IncomingSession::apply_request(std::span<const std::byte> body,
                                      Status (Sink::*operation)(SessionId, const Message&)) {
  auto message = wire::decode<Message>(body);
  if (!message) return failure(message.error());
  const Status status = (sink_.*operation)(options_.id, *message);
  if (message->request == 0) {
    if (!status) warn(status.error());
    return {};
  }
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
    case MessageType::kZeros: {
      if (const auto message = wire::decode<wire::Zeros>(body)) {
        MutexLock lock(mutex_);
        (void)take_wanted_locked(message->node, message->offset, message->length_bytes);
      }
      return apply(body, &Sink::zeros);
    }
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
    case MessageType::kPatience: {
      const auto message = wire::decode<wire::Patience>(body);
      if (!message) return failure(message.error());
      const auto most = static_cast<uint64_t>(kPatienceMax.count());
      patience_ = milliseconds(std::min(message->duration_ms, most));
      return {};
    }
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
        return failure(EPROTO, "inline chunk of " + std::to_string(bytes.size()) +
                                   " bytes: its announcement says " +
                                   std::to_string(message->length) + ", and 1 to " +
                                   std::to_string(wire::kInlineMaxBytes) + " are allowed");
      }
      if (message->compression != wire::Compression::kNone) {
        return failure(EPROTO, "inline chunk of " + std::to_string(bytes.size()) +
                                   " bytes: it is compressed, which is not allowed");
      }
      return handle_announce(*message, bytes);
    }
    case MessageType::kReadBack: {
      auto message = wire::decode<wire::ReadBack>(body);
      return message ? handle_read_back(*message) : failure(message.error());
    }
    case MessageType::kTransportOffer: {
      auto message = wire::decode<wire::TransportOffer>(body);
      return message ? handle_transport_offer(*message) : failure(message.error());
    }
    case MessageType::kGoodbye: {
      MutexLock lock(mutex_);
      over_ = Error{EIO, "the source " + options_.hello.source_name + " ended"};
      // From now on the source closes its connections. Without stop() the puller would report that
      // as a fault.
      if (offered_puller_) offered_puller_->stop();
      return {};
    }
    default:
      return failure(EPROTO, "unexpected message of type " +
                                 std::to_string(static_cast<int>(type)) + " from the source");
  }
}

Status IncomingSession::handle_read_back(const wire::ReadBack& message) {
  if (message.length > wire::kReadBackMaxBytes) {
    return failure(EPROTO, "read back of " + std::to_string(message.length) + " bytes: at most " +
                               std::to_string(wire::kReadBackMaxBytes) + " are allowed");
  }
  std::vector<std::byte> bytes(message.length);
  auto count = sink_.read(key(message.node), message.offset, bytes);
  wire::ReadBackReply reply;
  reply.request = message.request;
  reply.errno_value = count ? 0 : count.error().errno_value;
  return channel_.send(reply, std::span(bytes).first(count.value_or(0)));
}

// ---- Messages to the source --------------------------------------------------------------------
//
// These functions never block: their callers are threads that serve all sessions, or hold the
// store's lock.

Status IncomingSession::request_seal(uint64_t checkpoint) {
  return channel_.post(wire::SealRequest{checkpoint});
}

void IncomingSession::notify_removed(uint64_t checkpoint) {
  if (auto posted = channel_.post(wire::CheckpointRemoved{checkpoint}); !posted) {
    channel_.fail(Error{EIO, posted.error().message});
  }
}

void IncomingSession::notify_space(const wire::Space& space) { (void)channel_.post(space); }

SessionReport IncomingSession::report() const {
  SessionReport report;
  report.id = options_.id;
  report.source_name = options_.hello.source_name;
  report.peer = channel_.peer();
  report.security = options_.identity.text();
  report.encryption = to_string(options_.protection->kind());
  report.encryption_why = options_.protection->why();
  report.connected = channel_.connected();
  const auto now = Clock::now();
  report.silence = std::chrono::duration_cast<milliseconds>(now - channel_.last_received());
  report.silence_max = silence_max();
  report.age = std::chrono::duration_cast<milliseconds>(now - opened_at_);
  report.received_bytes = received_bytes_;
  report.wire_bytes = wire_bytes_;
  report.chunks = chunks_landed_;
  report.wrong_chunks = wrong_chunks_;
  report.pulled_again = pulled_again_;
  report.waits_for_space = waits_for_space_;
  MutexLock lock(mutex_);
  report.transport = transport_;
  report.transport_why = transport_why_;
  report.queued_chunks = queue_.size() + urgent_queue_.size() + starved_.size();
  report.pulling_chunks = pulling_;
  return report;
}

}  // namespace ppmr
