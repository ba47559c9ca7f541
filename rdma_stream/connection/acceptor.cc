#include "rdma_stream/connection/acceptor.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// The limit bounds the threads, because each connection has one.
constexpr size_t kConnectionsMax = 512;
constexpr size_t kStrangersMax = 256;
constexpr size_t kStrangersPerHostMax = 128;
// After this time without a hello, a newer stranger takes the place of a stranger. A handshake
// takes less time.
constexpr milliseconds kHandshakeUndisturbed{1000};
// A refused connection stays open this long, so that the peer can read the reason.
constexpr milliseconds kRefusedTime{500};
// Pause after a failed accept. The usual reason is a lack of file descriptors.
constexpr milliseconds kAcceptPause{100};

// Returns whether the peer has connected and closed before it sent a hello.
bool is_silent_end(const Error& error) { return error.errno_value == ECONNRESET; }

// Sends the reason in plain text: a source that expects TLS also accepts a plain reject, and tries
// again. This does not block, because the first bytes on a connection fit into its send buffer.
void send_busy(Connection& connection, const std::string& text) {
  send_reject(connection, wire::RejectReason::kBusy, text);
}

}  // namespace

Acceptor::Acceptor(Listener& listener, milliseconds hello_max, Serve serve,
                   OnConnectionEvent on_event)
    : listener_(listener),
      hello_max_(hello_max),
      serve_(std::move(serve)),
      on_event_(std::move(on_event)),
      thread_([this] { accept_connections(); }) {}

Acceptor::~Acceptor() {
  close();
  MutexLock lock(mutex_);
  for (Accepted& accepted : connections_) {
    if (!accepted.connection) continue;
    accepted.connection->shut_down();
    if (!accepted.thread.joinable()) accepted.connection = nullptr;  // refused: no thread serves it
  }
  changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) {
    return std::all_of(connections_.begin(), connections_.end(),
                       [](const Accepted& accepted) { return accepted.connection == nullptr; });
  });
  join_done_locked();
}

void Acceptor::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  listener_.close();
  if (thread_.joinable()) thread_.join();
}

void Acceptor::accept_connections() {
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
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, kAcceptPause, [this]() PPMR_REQUIRES(mutex_) { return closed_; });
  }
}

// Errors: ECANCELED when the listener is closed.
Status Acceptor::accept_connection() {
  auto connection = listener_.accept();
  if (!connection) return failure(connection.error());
  MutexLock lock(mutex_);
  join_done_locked();
  const std::string& peer = (*connection)->peer();
  const std::string host(host_of(peer));
  if (!make_room_locked(host)) {
    const std::string text = "too many connections";
    note_refusal(peer, text);
    report_refused(**connection, text);
    send_busy(**connection, text);
    return {};
  }
  Accepted& accepted = connections_.emplace_back();
  accepted.connection = std::move(*connection);
  accepted.host = host;
  start_thread_locked(accepted);
  return {};
}

void Acceptor::start_thread_locked(Accepted& accepted) {
  try {
    accepted.thread = std::thread([this, &accepted] { run(accepted); });
  } catch (const std::system_error& error) {
    const std::string text = std::string("the target cannot start a thread: ") + error.what();
    note_refusal(accepted.connection->peer(), text);
    report_refused(*accepted.connection, text);
    send_busy(*accepted.connection, text);
  }
}

// Returns whether a connection from `host` may be served. Drops a stranger if that is necessary to
// make room.
bool Acceptor::make_room_locked(const std::string& host) {
  size_t strangers = 0;
  size_t from_host = 0;
  bool is_guest = false;
  Accepted* oldest = nullptr;
  Accepted* oldest_from_host = nullptr;
  Accepted* newest_from_elsewhere = nullptr;
  for (Accepted& accepted : connections_) {
    if (accepted.guest && accepted.host == host) is_guest = true;
    if (!accepted.is_stranger()) continue;
    ++strangers;
    if (oldest == nullptr) oldest = &accepted;
    if (accepted.host != host) {
      newest_from_elsewhere = &accepted;
    } else if (++from_host == 1) {
      oldest_from_host = &accepted;
    }
  }
  const auto if_silent = [](Accepted* accepted) {
    const bool silent =
        accepted != nullptr && Clock::now() - accepted->since > kHandshakeUndisturbed;
    return silent ? accepted : nullptr;
  };
  Accepted* dropped = nullptr;
  if (from_host >= kStrangersPerHostMax) {
    dropped = if_silent(oldest_from_host);
  } else if (strangers < kStrangersMax && connections_.size() < kConnectionsMax) {
    return true;
  } else {
    dropped = is_guest ? newest_from_elsewhere : if_silent(oldest);
  }
  if (dropped == nullptr) return false;
  dropped->connection->shut_down();
  dropped->dropped = true;
  return true;
}

void Acceptor::note_refusal(const std::string& peer, const std::string& why) {
  if (refusals_.allows()) spdlog::warn("connection from {} refused: {}", peer, why);
}

void Acceptor::run(Accepted& accepted) {
  Status served;
  try {
    served = serve(accepted);
  } catch (const std::exception& exception) {
    served = failure(EIO, exception.what());
  }
  // A connection that ends before its first byte is no fault: a source measures the round trip in
  // this way, and monitoring checks in this way whether the port is open.
  const bool is_silent = !accepted.hello_received && !served && is_silent_end(served.error());
  if (!served && !is_silent && refusals_.allows()) {
    spdlog::warn("connection from {}: {}", accepted.connection->peer(), served.error().message);
  }
  MutexLock lock(mutex_);
  accepted.connection = nullptr;
  changed_.notify_all();
}

Status Acceptor::serve(Accepted& accepted) {
  auto identified = listener_.identify(accepted.connection, hello_max_);
  if (!identified) {
    if (!is_silent_end(identified.error())) {
      report_refused(*accepted.connection, identified.error().message);
    }
    return failure(identified.error());
  }
  const std::shared_ptr<Connection> connection = std::move(*identified);
  const auto hello = receive_handshake(*connection, hello_max_);
  {
    MutexLock lock(mutex_);
    accepted.hello_received = true;
    accepted.guest =
        hello && (!listener_.authenticates() || connection->peer_identity().authenticated());
  }
  if (hello) return serve_(connection, *hello);
  const auto reason = hello.error().errno_value == EPROTONOSUPPORT ? wire::RejectReason::kVersion
                                                                   : wire::RejectReason::kBadHello;
  send_reject(*connection, reason, hello.error().message);
  report_refused(*connection, hello.error().message);
  return failure(hello.error());
}

void Acceptor::report_refused(const Connection& connection, const std::string& reason) const {
  if (!on_event_) return;
  const PeerIdentity identity = connection.peer_identity();
  on_event_({.outcome = "refused",
             .service = "",
             .address = connection.peer(),
             .peer = identity.authenticated() ? identity.text() : "",
             .name = "",
             .reason = reason,
             .from_stranger = !identity.authenticated()});
}

void Acceptor::tidy() {
  if (const uint64_t more = refusals_.take_suppressed(); more > 0) {
    spdlog::warn("{} more connections were refused or failed", more);
  }
  MutexLock lock(mutex_);
  for (Accepted& accepted : connections_) {
    if (!accepted.connection) continue;
    const auto age = Clock::now() - accepted.since;
    const bool refused = !accepted.thread.joinable();
    if (refused && age > kRefusedTime) {
      accepted.connection = nullptr;
    } else if (!accepted.hello_received && age > 2 * hello_max_) {
      accepted.connection->shut_down();  // also ends a peer that sends its hello byte by byte
    }
  }
  join_done_locked();
}

void Acceptor::join_done_locked() {
  for (auto accepted = connections_.begin(); accepted != connections_.end();) {
    if (accepted->connection) {
      ++accepted;
      continue;
    }
    if (accepted->thread.joinable()) accepted->thread.join();  // the thread no longer needs mutex_
    accepted = connections_.erase(accepted);
  }
}

}  // namespace ppmr
