#include "rdma_stream/session/receiver.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Bounds the threads that peers can occupy before they have proved who they are.
constexpr size_t kConnectionsMax = 256;
constexpr size_t kSessionsMax = 256;
constexpr size_t kEndedSessionsMax = 64;
// A refused connection stays open this long, so that the peer can read the reason.
constexpr milliseconds kRefusedTime{500};
// Pause after a failed accept. The usual reason is a lack of file descriptors.
constexpr milliseconds kAcceptPause{100};

Status check(const wire::ControlHello& hello) {
  if (hello.slot_count == 0 || hello.slot_count > wire::kSlotsMax || hello.stream_count == 0 ||
      hello.stream_count > wire::kStreamsMax || hello.chunk_size_bytes == 0 ||
      hello.chunk_size_bytes > (uint32_t{64} << 20) || hello.source_name.size() > 255) {
    return failure(EPROTO, "hello: numbers out of range");
  }
  return {};
}

}  // namespace

Receiver::Receiver(ReceiverOptions options, std::unique_ptr<Listener> listener, Sink& sink)
    : options_(std::move(options)),
      timings_(SessionTimings::from_peer_timeout(options_.peer_timeout)),
      listener_(std::move(listener)),
      sink_(sink),
      acceptor_([this] { accept_connections(); }) {
  try {
    watcher_ = std::thread([this] { run_watcher(); });
  } catch (...) {
    listener_->close();
    acceptor_.join();
    reap_connections(/*all=*/true);
    throw;
  }
}

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
  reap_connections(/*all=*/true);
}

// ---- Connections -------------------------------------------------------------------------------

void Receiver::accept_connections() {
  for (;;) {
    Status accepted;
    try {
      accepted = accept_connection();
    } catch (const std::exception& exception) {
      accepted = failure(ENOMEM, std::string("cannot accept a connection: ") + exception.what());
    }
    if (accepted) continue;
    if (accepted.error().errno_value == ECANCELED) return;
    spdlog::warn("{}", accepted.error().message);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kAcceptPause, [this] { return stopping_; });
  }
}

// Errors: ECANCELED when the listener is closed.
Status Receiver::accept_connection() {
  auto connection = listener_->accept();
  if (!connection) return failure(connection.error());
  std::lock_guard lock(mutex_);
  if (connections_.size() >= kConnectionsMax && !evict_silent_locked()) {
    spdlog::warn("connection from {} refused: too many connections", (*connection)->peer());
    return {};
  }
  Accepted& accepted = connections_.emplace_back();
  accepted.connection = std::move(*connection);
  start_thread_locked(accepted);
  return {};
}

// Without a thread the peer gets a reject in plain text: a source accepts it also in place of TLS.
void Receiver::start_thread_locked(Accepted& accepted) {
  try {
    accepted.thread = std::thread([this, &accepted] { run_connection(accepted); });
  } catch (const std::system_error& error) {
    const std::string text = std::string("the target cannot start a thread: ") + error.what();
    spdlog::warn("connection from {} refused: {}", accepted.connection->peer(), text);
    send_reject(*accepted.connection, wire::RejectReason::kBusy, text);
  }
}

// Makes room for a connection: peers that send nothing must not keep a source out.
bool Receiver::evict_silent_locked() {
  for (Accepted& accepted : connections_) {  // in the order of acceptance
    if (accepted.hello_received || accepted.evicted || !accepted.connection) continue;
    accepted.connection->shut_down();
    accepted.evicted = true;
    return true;
  }
  return false;
}

void Receiver::run_connection(Accepted& accepted) {
  Status served;
  try {
    served = serve(accepted);
  } catch (const std::exception& exception) {
    served = failure(EIO, exception.what());
  }
  if (!served) {
    spdlog::warn("connection from {}: {}", accepted.connection->peer(), served.error().message);
  }
  std::lock_guard lock(mutex_);
  accepted.connection = nullptr;
  changed_.notify_all();
}

Status Receiver::serve(Accepted& accepted) {
  const milliseconds timeout = timings_.handshake_max;
  auto identified = listener_->identify(accepted.connection, timeout);
  if (!identified) return failure(identified.error());
  const std::shared_ptr<Connection> connection = std::move(*identified);
  auto handshake = receive_handshake(*connection, timeout);
  {
    std::lock_guard lock(mutex_);
    accepted.hello_received = true;
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
  if (handshake->kind == wire::HandshakeKind::kData) return attach_data(connection, *handshake);
  if (listener_->authenticates() && !connection->peer_identity().authenticated()) {
    const std::string text =
        "the source sends plain text, but this target requires authentication: start the source "
        "with the same --key-file, or with a certificate";
    send_reject(*connection, wire::RejectReason::kNotAuthenticated, text);
    return failure(EACCES, text);
  }
  if (handshake->kind == wire::HandshakeKind::kControl) {
    return serve_control(connection, *handshake);
  }
  if (handshake->kind == wire::HandshakeKind::kAgent) return serve_agent(*connection, *handshake);
  send_reject(*connection, wire::RejectReason::kBadHello, "not a hello");
  return failure(EPROTO, "not a hello");
}

Status Receiver::serve_control(std::shared_ptr<Connection> connection, const Handshake& handshake) {
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
    spdlog::info("source {} reconnected from {}", hello->source_name, connection->peer());
  }
  session->notify_space(sink_.space());
  auto served = session->run_control(connection, hello->received_sequence, options_.target_name);
  if (auto reason = session->over(); !served && reason) {
    send_reject(*connection, wire::RejectReason::kUnknownSession,
                "the target ended the session: " + reason->message);
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
    if (stopping_) return failure(ECANCELED, "the target is shutting down");
    if (sessions_.size() >= kSessionsMax) return failure(EBUSY, "too many sessions");
    options.id = ++last_session_;
  }
  SessionPointer session;
  try {
    session = std::make_shared<IncomingSession>(options, sink_);
  } catch (const std::exception& exception) {  // no thread, no memory
    return failure(EAGAIN, std::string("the target cannot open a session: ") + exception.what());
  }
  sink_.session_opened(options.id, hello.source_name);
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      sessions_[options.id] = session;
      return session;
    }
  }
  end_session(session, Error{EIO, "the target ended"});
  return failure(ECANCELED, "the target is shutting down");
}

std::string Receiver::why_unknown(const wire::ControlHello& hello) const {
  std::lock_guard lock(mutex_);
  for (const EndedSession& ended : ended_) {
    if (ended.session == hello.session && equal_secrets(ended.token, hello.token)) {
      return "the target ended the session: " + ended.reason;
    }
  }
  return "the target does not have this session: it was restarted";
}

Status Receiver::attach_data(std::shared_ptr<Connection> connection, const Handshake& handshake) {
  auto hello = wire::decode<wire::DataHello>(handshake.body);
  SessionPointer session = hello ? find(*hello) : nullptr;
  if (!session || !session->accept_attempt(*hello)) {
    const std::string text = session ? "data connection: its hello was used before"
                                     : "data connection: unknown session or wrong proof";
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

Status Receiver::serve_agent(Connection& connection, const Handshake& handshake) {
  auto hello = wire::decode<wire::AgentHello>(handshake.body);
  Status checked;
  if (!hello || hello->node_name.size() > 255) {
    checked = failure(EPROTO, "malformed hello to the agent");
  } else if (!options_.serve_agent) {
    checked = failure(EPERM,
                      "this target does not restart processes for others: start ppmr target with "
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

void Receiver::reap_connections(bool all) {
  const auto done = [](const Accepted& accepted) { return accepted.connection == nullptr; };
  std::unique_lock lock(mutex_);
  for (Accepted& accepted : connections_) {
    if (!accepted.connection) continue;
    if (all) accepted.connection->shut_down();
    const bool refused = !accepted.thread.joinable();
    if (refused && (all || Clock::now() - accepted.since > kRefusedTime)) {
      accepted.connection = nullptr;
    }
  }
  if (all) {
    changed_.wait(lock,
                  [&] { return std::all_of(connections_.begin(), connections_.end(), done); });
  }
  for (auto accepted = connections_.begin(); accepted != connections_.end();) {
    if (!done(*accepted)) {
      ++accepted;
      continue;
    }
    if (accepted->thread.joinable()) accepted->thread.join();
    accepted = connections_.erase(accepted);
  }
}

// ---- Sessions ----------------------------------------------------------------------------------

Receiver::SessionPointer Receiver::find(SessionId id) const {
  std::lock_guard lock(mutex_);
  auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

// Only the peer that opened a session may continue it.
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

void Receiver::run_watcher() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, timings_.watch_interval);
    lock.unlock();
    try {
      watch_sessions();
    } catch (const std::exception& exception) {
      spdlog::error("cannot check the sessions: {}", exception.what());
    }
    lock.lock();
  }
}

// Ends the sessions that are over, reports free space to the sources of the others.
void Receiver::watch_sessions() {
  std::vector<SessionPointer> sessions;
  {
    std::lock_guard lock(mutex_);
    shut_down_late_locked();
    for (auto& [id, session] : sessions_) sessions.push_back(session);
  }
  const wire::Space space = sink_.space();
  const bool changed = space.free_bytes != space_.free_bytes;
  space_ = space;
  for (auto& session : sessions) {
    if (auto reason = session->over()) {
      end_session(session, *reason);
    } else if (changed) {
      session->notify_space(space);
    }
  }
  sessions.clear();
  reap_connections(/*all=*/false);
}

// A peer that sends its hello byte by byte must not occupy a thread for long.
void Receiver::shut_down_late_locked() {
  for (Accepted& accepted : connections_) {
    if (accepted.connection && !accepted.hello_received &&
        Clock::now() - accepted.since > 2 * timings_.handshake_max) {
      accepted.connection->shut_down();
    }
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

void Receiver::prioritize(NodeKey file, uint64_t offset, uint64_t length) {
  if (auto session = find(file.session)) session->prioritize(file.node, offset, length);
}

void Receiver::notify_removed(NodeKey checkpoint) {
  if (auto session = find(checkpoint.session)) session->notify_removed(checkpoint.node);
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
