#include "rdma_stream/session/receiver.h"

#include <algorithm>

#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Connections that are served or say hello at the same time: strangers cannot take all memory.
constexpr size_t kGuestsMax = 256;
constexpr size_t kSessionsMax = 256;
constexpr size_t kEndedSessionsMax = 64;

Status check(const wire::ControlHello& hello) {
  if (hello.slot_count == 0 || hello.slot_count > wire::kSlotsMax || hello.stream_count == 0 ||
      hello.stream_count > wire::kStreamsMax || hello.chunk_size_bytes == 0 ||
      hello.chunk_size_bytes > (uint32_t{64} << 20) || hello.source_name.size() > 255) {
    return failure(EPROTO, "hello with numbers out of range");
  }
  return {};
}

}  // namespace

Receiver::Receiver(ReceiverOptions options, std::unique_ptr<Listener> listener, Sink& sink)
    : options_(std::move(options)),
      timings_(SessionTimings::from_peer_timeout(options_.peer_timeout)),
      listener_(std::move(listener)),
      sink_(sink),
      acceptor_([this] { accept_connections(); }),
      watcher_([this] { watch_sessions(); }) {}

Receiver::~Receiver() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  listener_->close();
  acceptor_.join();
  watcher_.join();
  std::vector<SessionPointer> sessions;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (auto& session : sessions) end_session(session, Error{EIO, "the target ended"});
  reap_guests(/*all=*/true);
}

// ---- Connections -------------------------------------------------------------------------------

void Receiver::accept_connections() {
  for (;;) {
    auto connection = listener_->accept();
    if (!connection) {
      if (connection.error().errno_value == ECANCELED) return;
      spdlog::warn("{}", connection.error().message);
      // Out of descriptors, most likely: give the present guests time to leave.
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(100), [this] { return stopping_; });
      continue;
    }
    std::lock_guard lock(mutex_);
    if (guests_.size() >= kGuestsMax && !send_away_stranger_locked()) {
      spdlog::warn("connection from {} refused: too many connections", (*connection)->peer());
      continue;
    }
    Guest& guest = guests_.emplace_back();
    guest.connection = std::move(*connection);
    guest.thread = std::thread([this, &guest] { welcome(guest); });
  }
}

// Who has been silent for longest makes room: strangers cannot keep a source out.
bool Receiver::send_away_stranger_locked() {
  for (Guest& guest : guests_) {  // in the order of their coming
    if (guest.greeted || guest.sent_away || !guest.connection) continue;
    guest.connection->shut_down();
    guest.sent_away = true;
    return true;
  }
  return false;
}

void Receiver::welcome(Guest& guest) {
  if (auto served = serve(guest); !served) {
    spdlog::warn("connection from {}: {}", guest.connection->peer(), served.error().message);
  }
  std::lock_guard lock(mutex_);
  guest.connection = nullptr;
  guest.done = true;
  changed_.notify_all();
}

Status Receiver::serve(Guest& guest) {
  const milliseconds timeout = timings_.handshake_max;
  auto identified = listener_->identify(guest.connection, timeout);
  if (!identified) return failure(identified.error());
  const std::shared_ptr<Connection> connection = std::move(*identified);
  auto handshake = receive_handshake(*connection, timeout);
  {
    std::lock_guard lock(mutex_);
    guest.greeted = true;
  }
  if (!handshake) {
    const auto reason = handshake.error().errno_value == EPROTONOSUPPORT
                            ? wire::RejectReason::kVersion
                            : wire::RejectReason::kBadHello;
    send_reject(*connection, reason, handshake.error().message);
    return failure(handshake.error());
  }
  if (handshake->kind == wire::HandshakeKind::kReject) {
    auto reject = wire::decode<wire::Reject>(handshake->body);
    if (!reject) return failure(reject.error());
    return failure(ECONNREFUSED,
                   "the source refused: " + readable(std::as_bytes(std::span(reject->text))));
  }
  if (handshake->kind == wire::HandshakeKind::kData) return welcome_data(connection, *handshake);
  if (listener_->authenticates() && !connection->peer_identity().authenticated()) {
    const std::string text =
        "a source in plain text, but this target wants to know who it is: give the source the same "
        "--key-file, or a certificate";
    send_reject(*connection, wire::RejectReason::kNotAuthenticated, text);
    return failure(EACCES, text);
  }
  if (handshake->kind == wire::HandshakeKind::kControl) {
    return welcome_control(connection, *handshake);
  }
  if (handshake->kind == wire::HandshakeKind::kAgent) return welcome_agent(*connection, *handshake);
  send_reject(*connection, wire::RejectReason::kBadHello, "not a hello");
  return failure(EPROTO, "not a hello");
}

Status Receiver::welcome_control(std::shared_ptr<Connection> connection,
                                 const Handshake& handshake) {
  auto hello = wire::decode<wire::ControlHello>(handshake.body);
  if (!hello) {
    send_reject(*connection, wire::RejectReason::kBadHello, hello.error().message);
    return failure(hello.error());
  }
  if (auto checked = check(*hello); !checked) {
    send_reject(*connection, wire::RejectReason::kBadHello, checked.error().message);
    return checked;
  }
  SessionPointer session;
  if (hello->token == wire::Token{}) {
    auto opened = open_session(*hello, connection->peer_identity());
    if (!opened) {
      send_reject(*connection, wire::RejectReason::kBusy, opened.error().message);
      return failure(opened.error());
    }
    session = *opened;
    spdlog::info("source {} connected from {}, security {}", hello->source_name, connection->peer(),
                 connection->peer_identity().text());
  } else {
    session = find(*hello, connection->peer_identity());
    if (!session) {
      const std::string text = why_unknown(*hello);
      send_reject(*connection, wire::RejectReason::kUnknownSession, text);
      return failure(ESTALE, text);
    }
    spdlog::info("source {} connected again from {}", hello->source_name, connection->peer());
  }
  session->tell_space(sink_.space());
  auto served = session->run_control(connection, hello->received_sequence, options_.target_name);
  if (auto reason = session->over(); !served && reason) {
    send_reject(*connection, wire::RejectReason::kUnknownSession,
                "the session was ended here: " + reason->message);
  }
  return served;
}

Result<Receiver::SessionPointer> Receiver::open_session(const wire::ControlHello& hello,
                                                        const PeerIdentity& identity) {
  IncomingSession::Options options;
  options.hello = hello;
  options.token = random_token();
  options.identity = identity;
  options.timings = timings_;
  options.transport = options_.transport;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return failure(ECANCELED, "the target ends");
    if (sessions_.size() >= kSessionsMax) return failure(EBUSY, "too many sessions");
    options.id = ++last_session_;
  }
  // Nobody knows the session yet, so that this needs no lock.
  auto session = std::make_shared<IncomingSession>(options, sink_);
  sink_.session_opened(options.id, hello.source_name);
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      sessions_[options.id] = session;
      return session;
    }
  }
  end_session(session, Error{EIO, "the target ended"});
  return failure(ECANCELED, "the target ends");
}

std::string Receiver::why_unknown(const wire::ControlHello& hello) const {
  std::lock_guard lock(mutex_);
  for (const EndedSession& ended : ended_) {
    if (ended.session == hello.session && equal_secrets(ended.token, hello.token)) {
      return "the session was ended here: " + ended.reason;
    }
  }
  return "no such session here: this target was restarted";
}

Status Receiver::welcome_data(std::shared_ptr<Connection> connection, const Handshake& handshake) {
  auto hello = wire::decode<wire::DataHello>(handshake.body);
  SessionPointer session = hello ? find(*hello) : nullptr;
  if (!session || !session->use_up(*hello)) {
    const std::string text = session ? "data connection with a hello that was used before"
                                     : "data connection without a session, or with a wrong proof";
    send_reject(*connection, wire::RejectReason::kUnknownSession, text);
    return failure(ESTALE, text);
  }
  const wire::DataWelcome welcome{session_proof(Prover::kTarget, session->token(), hello->session,
                                                hello->stream, hello->attempt)};
  if (auto sent = send_handshake(*connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  return session->attach_stream(hello->stream, std::move(connection));
}

Status Receiver::welcome_agent(Connection& connection, const Handshake& handshake) {
  auto hello = wire::decode<wire::AgentHello>(handshake.body);
  Status checked;
  if (!hello || hello->node_name.size() > 255) {
    checked = failure(EPROTO, "malformed hello to the agent");
  } else if (!options_.serve_agent) {
    checked = failure(EPERM,
                      "this target restarts nothing on behalf of others: start ppmr target with "
                      "--allow-restart");
  }
  if (!checked) {
    send_reject(connection, wire::RejectReason::kBadHello, checked.error().message);
    return checked;
  }
  wire::Welcome welcome;
  welcome.target_name = options_.target_name;
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  return options_.serve_agent(connection, hello->node_name);
}

void Receiver::reap_guests(bool all) {
  std::unique_lock lock(mutex_);
  if (all) {
    for (Guest& guest : guests_) {
      if (guest.connection) guest.connection->shut_down();
    }
    changed_.wait(lock, [this] {
      return std::all_of(guests_.begin(), guests_.end(), [](auto& guest) { return guest.done; });
    });
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    if (!guest->done) {
      ++guest;
      continue;
    }
    guest->thread.join();
    guest = guests_.erase(guest);
  }
}

// ---- Sessions ----------------------------------------------------------------------------------

Receiver::SessionPointer Receiver::find(SessionId id) const {
  std::lock_guard lock(mutex_);
  auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

// A session goes on with the peer that opened it alone.
Receiver::SessionPointer Receiver::find(const wire::ControlHello& hello,
                                        const PeerIdentity& identity) const {
  std::lock_guard lock(mutex_);
  for (auto& [id, candidate] : sessions_) {
    if (candidate->session_token() == hello.session &&
        equal_secrets(candidate->token(), hello.token) && candidate->identity() == identity) {
      return candidate;
    }
  }
  return nullptr;
}

Receiver::SessionPointer Receiver::find(const wire::DataHello& hello) const {
  std::lock_guard lock(mutex_);
  for (auto& [id, candidate] : sessions_) {
    if (candidate->proves(hello)) return candidate;
  }
  return nullptr;
}

// Ends the sessions that are over, tells the sources how much room there is.
void Receiver::watch_sessions() {
  wire::Space told;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, timings_.watch_interval);
    // Whoever says its hello byte by byte only takes a place.
    for (Guest& guest : guests_) {
      if (guest.connection && !guest.greeted &&
          std::chrono::steady_clock::now() - guest.since > 2 * timings_.handshake_max) {
        guest.connection->shut_down();
      }
    }
    std::vector<SessionPointer> sessions;
    for (auto& [id, session] : sessions_) sessions.push_back(session);
    lock.unlock();
    const wire::Space space = sink_.space();
    const bool changed = space.free_bytes != told.free_bytes;
    told = space;
    for (auto& session : sessions) {
      if (auto reason = session->over()) {
        end_session(session, *reason);
      } else if (changed) {
        session->tell_space(space);
      }
    }
    sessions.clear();
    reap_guests(/*all=*/false);
    lock.lock();
  }
}

void Receiver::end_session(const SessionPointer& session, const Error& reason) {
  spdlog::info("session of {} ended: {}", session->report().source_name, reason.message);
  session->end(reason);
  sink_.session_ended(session->id(), reason.message);
  std::lock_guard lock(mutex_);
  sessions_.erase(session->id());
  ended_.push_back({session->session_token(), session->token(), reason.message});
  if (ended_.size() > kEndedSessionsMax) ended_.pop_front();
}

void Receiver::space_freed() {
  std::vector<SessionPointer> sessions;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (auto& session : sessions) session->space_freed();
}

void Receiver::hurry(NodeKey file, uint64_t offset, uint64_t length) {
  if (auto session = find(file.session)) session->hurry(file.node, offset, length);
}

void Receiver::tell_removed(NodeKey checkpoint) {
  if (auto session = find(checkpoint.session)) session->tell_removed(checkpoint.node);
}

Status Receiver::request_seal(NodeKey checkpoint) {
  auto session = find(checkpoint.session);
  if (!session) return failure(ENOTCONN, "its source is no longer connected");
  return session->request_seal(checkpoint.node);
}

std::vector<SessionReport> Receiver::sessions() const {
  std::vector<SessionReport> reports;
  std::lock_guard lock(mutex_);
  for (auto& [id, session] : sessions_) reports.push_back(session->report());
  return reports;
}

}  // namespace ppmr
