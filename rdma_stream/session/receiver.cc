#include "rdma_stream/session/receiver.h"

#include <algorithm>
#include <exception>

#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr size_t kSessionsMax = 256;
// The limit for the sessions of one identity at one address. A node has fewer source mounts.
constexpr ptrdiff_t kSessionsPerPeerMax = 64;
constexpr size_t kEndedSessionsMax = 64;

Status check(const wire::ControlHello& hello) {
  if (hello.slot_count == 0 || hello.slot_count > wire::kSlotsMax || hello.stream_count == 0 ||
      hello.stream_count > wire::kStreamsMax || hello.chunk_size_bytes == 0 ||
      hello.chunk_size_bytes > (uint32_t{64} << 20) || hello.source_name.size() > 255) {
    return failure(EPROTO,
                   "handshake of a source: a field is out of range, or the source's name is longer "
                   "than 255 bytes: install the same ppmr on both nodes");
  }
  return {};
}

}  // namespace

void ReceiverTotals::add(const SessionReport& session) {
  wire_bytes += session.wire_bytes;
  chunks += session.chunks;
  const bool encrypted = session.encryption == to_string(wire::Protection::kAes256Gcm);
  (encrypted ? aead_failures : crc_failures) += session.wrong_chunks;
  pulled_again += session.pulled_again;
  waits_for_space += session.waits_for_space;
}

Receiver::Receiver(ReceiverOptions options, std::unique_ptr<Listener> listener, Sink& sink)
    : options_(std::move(options)),
      timings_(SessionTimings::from_peer_timeout(options_.peer_timeout)),
      listener_(std::move(listener)),
      sink_(sink),
      acceptor_(
          std::in_place, *listener_, timings_.handshake_max,
          [this](const std::shared_ptr<Connection>& connection, const Handshake& hello) {
            return serve(connection, hello);
          },
          options_.on_event),
      watcher_([this] { run_watcher(); }) {}

Receiver::~Receiver() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_requested_.notify_all();
  acceptor_->close();
  watcher_.join();
  for (auto& session : all_sessions()) end_session(session, Error{EIO, "the target ended"});
  acceptor_.reset();
}

// ---- Connections -------------------------------------------------------------------------------

Status Receiver::serve(const std::shared_ptr<Connection>& connection, const Handshake& hello) {
  if (hello.kind == wire::HandshakeKind::kReject) {
    auto reject = wire::decode<wire::Reject>(hello.body);
    if (!reject) return failure(reject.error());
    const std::string text =
        "the source refused: " + readable(std::as_bytes(std::span(reject->text)));
    report(*connection, {.outcome = "refused", .reason = text});
    return failure(ECONNREFUSED, text);
  }
  if (hello.kind == wire::HandshakeKind::kData) return attach_data(connection, hello);
  if (listener_->authenticates() && !connection->peer_identity().authenticated()) {
    const std::string text =
        "the source sends plain text, but this target requires authentication: start the source "
        "with the same --key-file, or with a certificate";
    return refuse(*connection, wire::RejectReason::kNotAuthenticated, {}, {EACCES, text});
  }
  if (hello.kind == wire::HandshakeKind::kControl) return serve_control(connection, hello);
  if (hello.kind == wire::HandshakeKind::kAgent) return serve_agent(*connection, hello);
  return refuse(*connection, wire::RejectReason::kBadHello, {},
                {EPROTO, "the first message is not a hello"});
}

void Receiver::report(const Connection& connection, ConnectionEvent event) const {
  if (!options_.on_event) return;
  const PeerIdentity identity = connection.peer_identity();
  event.address = connection.peer();
  // A data connection has the identity of its session.
  if (event.peer.empty() && (identity.authenticated() || !listener_->authenticates())) {
    event.peer = identity.text();
  }
  event.from_stranger = event.outcome == "refused" && !identity.authenticated();
  options_.on_event(event);
}

// Sends the peer the reason why it is refused.
Status Receiver::refuse(Connection& connection, wire::RejectReason reason, ConnectionEvent event,
                        const Error& error) const {
  send_reject(connection, reason, error.message);
  event.outcome = "refused";
  event.reason = error.message;
  report(connection, std::move(event));
  return failure(error);
}

Status Receiver::serve_control(const std::shared_ptr<Connection>& connection,
                               const Handshake& handshake) {
  ConnectionEvent event{.service = "source"};
  auto hello = wire::decode<wire::ControlHello>(handshake.body);
  if (!hello) return refuse(*connection, wire::RejectReason::kBadHello, event, hello.error());
  event.name = hello->source_name.substr(0, wire::kNameMaxBytes);
  if (auto checked = check(*hello); !checked) {
    return refuse(*connection, wire::RejectReason::kBadHello, event, checked.error());
  }
  const PeerIdentity identity = connection->peer_identity();
  if (!identity.may_act_as(PeerRole::kSource)) {
    return refuse(*connection, wire::RejectReason::kNotAuthenticated, event,
                  {EACCES, wrong_role(identity, PeerRole::kSource)});
  }
  SessionPointer session;
  if (hello->token == wire::Token{}) {
    auto opened = open_session(*hello, *connection);
    if (!opened) return refuse(*connection, wire::RejectReason::kBusy, event, opened.error());
    session = *opened;
    const SessionReport report = session->report();
    spdlog::info("source {} connected from {}, security {}, encryption of the data: {}, because {}",
                 hello->source_name, connection->peer(), report.security, report.encryption,
                 report.encryption_why);
    event.outcome = "accepted";
  } else {
    session = find(*hello, identity);
    if (!session) {
      return refuse(*connection, wire::RejectReason::kUnknownSession, event,
                    {ESTALE, why_unknown(*hello)});
    }
    spdlog::info("source {} reconnected from {}", hello->source_name, connection->peer());
    event.outcome = "resumed";
  }
  report(*connection, event);
  session->notify_space(sink_.space());
  auto served = session->run_control(connection, hello->received_sequence, options_.target_name);
  if (auto reason = session->over(); !served && reason) {
    send_reject(*connection, wire::RejectReason::kUnknownSession,
                "the target ended the session: " + reason->message);
  }
  return served;
}

Result<Receiver::SessionPointer> Receiver::open_session(const wire::ControlHello& hello,
                                                        Connection& connection) {
  IncomingSession::Options options;
  options.hello = hello;
  options.opened_by = connection.peer();
  options.token = random_token();
  options.identity = connection.peer_identity();
  options.channel.timings = timings_;
  options.transport = options_.transport;
  auto protection = ChunkProtection::create(
      connection, hello.session, options.token,
      choose_protection(options.identity, hello.protection, options_.trusted_fabric),
      options_.trusted_fabric);
  if (!protection) return failure(protection.error());
  options.protection = std::move(*protection);
  options.decompressor = decompressor_;
  {
    MutexLock lock(mutex_);
    if (stopping_) return failure(ECANCELED, "the target is shutting down");
    if (sessions_.size() >= kSessionsMax)
      return failure(EBUSY, "the target has too many sessions: try again later");
    const auto same_peer = [&](const auto& session) {
      return session.second->identity() == options.identity &&
             host_of(session.second->opened_by()) == host_of(connection.peer());
    };
    if (std::count_if(sessions_.begin(), sessions_.end(), same_peer) >= kSessionsPerPeerMax) {
      return failure(EBUSY,
                     "the target has too many sessions of this peer: end some, or try again later");
    }
    options.id = ++last_session_;
  }
  SessionPointer session;
  try {
    session = std::make_shared<IncomingSession>(options, sink_);
  } catch (const std::exception& exception) {  // no thread, no memory
    return failure(EAGAIN, std::string("the target cannot open a session: ") + exception.what());
  }
  sink_.session_opened(options.id, hello.source_name, options.identity.owner(hello.source_name));
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      sessions_[options.id] = session;
      return session;
    }
  }
  end_session(session, Error{EIO, "the target ended"});
  return failure(ECANCELED, "the target is shutting down");
}

std::string Receiver::why_unknown(const wire::ControlHello& hello) const {
  MutexLock lock(mutex_);
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
    return refuse(*connection, wire::RejectReason::kUnknownSession, {.service = "data"},
                  {ESTALE, text});
  }
  const SessionReport of_session = session->report();
  report(*connection, {.outcome = "accepted",
                       .service = "data",
                       .peer = of_session.security,
                       .name = of_session.source_name});
  const wire::DataWelcome welcome{session_proof(Prover::kTarget, session->token(), hello->session,
                                                hello->stream, hello->attempt)};
  if (auto sent = send_handshake(*connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  return session->attach_stream(hello->stream, std::move(connection));
}

Status Receiver::serve_agent(Connection& connection, const Handshake& handshake) {
  ConnectionEvent event{.service = "migrate"};
  auto hello = wire::decode<wire::AgentHello>(handshake.body);
  if (!hello || hello->node_name.size() > wire::kNameMaxBytes) {
    return refuse(connection, wire::RejectReason::kBadHello, event,
                  {EPROTO, "malformed hello to the agent"});
  }
  event.name = hello->node_name;
  if (Status checked = check_agent(connection, hello->node_name); !checked) {
    return refuse(connection, wire::RejectReason::kBadHello, event, checked.error());
  }
  wire::Welcome welcome;
  welcome.target_name = options_.target_name;
  if (auto sent = send_handshake(connection, wire::HandshakeKind::kWelcome, welcome); !sent) {
    return sent;
  }
  event.outcome = "accepted";
  report(connection, event);
  const Status served = options_.serve_agent(connection, hello->node_name);
  event.outcome = "ended";
  event.reason = served ? "" : served.error().message;
  report(connection, event);
  return served;
}

// Checks whether this peer may restart processes here.
Status Receiver::check_agent(const Connection& connection, const std::string& node_name) const {
  if (!options_.serve_agent) {
    return failure(EPERM,
                   "this target does not restart processes for others: start ppmr target with "
                   "--allow-restart, --allow-root-restart or --restart-policy");
  }
  const PeerIdentity identity = connection.peer_identity();
  if (!identity.may_act_as(PeerRole::kMigrate)) {
    return failure(EACCES, wrong_role(identity, PeerRole::kMigrate));
  }
  const auto& allowed = options_.restart_peers;
  const std::string& name = identity.authenticated() ? identity.name : node_name;
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), name) != allowed.end()) {
    return {};
  }
  return failure(EACCES, "this target does not restart processes for '" +
                             readable(std::as_bytes(std::span(name))) +
                             "': start ppmr target with --allow-restart-from " +
                             readable(std::as_bytes(std::span(name))));
}

// ---- Sessions ----------------------------------------------------------------------------------

std::vector<Receiver::SessionPointer> Receiver::all_sessions() const {
  std::vector<SessionPointer> sessions;
  MutexLock lock(mutex_);
  for (auto& [id, session] : sessions_) sessions.push_back(session);
  return sessions;
}

Receiver::SessionPointer Receiver::find(SessionId id) const {
  MutexLock lock(mutex_);
  auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

// Only the peer that opened a session may continue it.
Receiver::SessionPointer Receiver::find(const wire::ControlHello& hello,
                                        const PeerIdentity& identity) const {
  MutexLock lock(mutex_);
  for (auto& [id, candidate] : sessions_) {
    if (candidate->session_token() == hello.session &&
        equal_secrets(candidate->token(), hello.token) && candidate->identity() == identity) {
      return candidate;
    }
  }
  return nullptr;
}

Receiver::SessionPointer Receiver::find(const wire::DataHello& hello) const {
  MutexLock lock(mutex_);
  for (auto& [id, candidate] : sessions_) {
    if (candidate->proves(hello)) return candidate;
  }
  return nullptr;
}

void Receiver::run_watcher() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    stop_requested_.wait_for(mutex_, timings_.watch_interval);
    lock.unlock();
    try {
      watch_sessions();
      acceptor_->tidy();
    } catch (const std::exception& exception) {
      spdlog::error("cannot check the sessions: {}", exception.what());
    }
    lock.lock();
  }
}

// Ends the sessions that are over, and reports free space to the sources of the other sessions.
void Receiver::watch_sessions() {
  const wire::Space space = sink_.space();
  const bool changed = space.free_bytes != space_.free_bytes;
  space_ = space;
  for (auto& session : all_sessions()) {
    if (auto reason = session->over()) {
      end_session(session, *reason);
    } else if (changed) {
      session->notify_space(space);
    }
  }
}

void Receiver::end_session(const SessionPointer& session, const Error& reason) {
  const SessionReport report = session->report();
  spdlog::info("session of {} ended: {}", report.source_name, reason.message);
  if (options_.on_event) {
    options_.on_event({.outcome = "ended",
                       .service = "source",
                       .address = report.peer,
                       .peer = report.security,
                       .name = report.source_name,
                       .reason = reason.message,
                       .from_stranger = false});
  }
  session->end(reason);
  sink_.session_ended(session->id(), reason.message);
  MutexLock lock(mutex_);
  ended_totals_.add(session->report());
  sessions_.erase(session->id());
  ended_.push_back({session->session_token(), session->token(), reason.message});
  if (ended_.size() > kEndedSessionsMax) ended_.pop_front();
}

void Receiver::space_freed() {
  for (auto& session : all_sessions()) session->space_freed();
}

void Receiver::prioritize(NodeKey file, uint64_t offset, uint64_t length) {
  if (auto session = find(file.session)) session->prioritize(file.node, offset, length);
}

void Receiver::want(NodeKey file, uint64_t offset, uint64_t length) {
  if (auto session = find(file.session)) session->want(file.node, offset, length);
}

void Receiver::notify_removed(NodeKey checkpoint) {
  if (auto session = find(checkpoint.session)) session->notify_removed(checkpoint.node);
}

Status Receiver::request_seal(NodeKey checkpoint) {
  auto session = find(checkpoint.session);
  if (!session) return failure(ENOTCONN, "the source of the checkpoint is no longer connected");
  return session->request_seal(checkpoint.node);
}

std::vector<SessionReport> Receiver::sessions() const {
  std::vector<SessionReport> reports;
  MutexLock lock(mutex_);
  for (auto& [id, session] : sessions_) reports.push_back(session->report());
  return reports;
}

ReceiverTotals Receiver::totals() const {
  MutexLock lock(mutex_);
  ReceiverTotals totals = ended_totals_;
  for (auto& [id, session] : sessions_) totals.add(session->report());
  return totals;
}

}  // namespace ppmr
