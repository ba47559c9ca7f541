#include "rdma_stream/connection/acceptor.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Limits the number of threads. At the limit, a new connection displaces one that has not sent its
// hello: evict_silent_locked().
constexpr size_t kConnectionsMax = 256;
// A refused connection stays open this long, so that the peer can read the reason.
constexpr milliseconds kRefusedTime{500};
// Pause after a failed accept. The usual reason is a lack of file descriptors.
constexpr milliseconds kAcceptPause{100};

// Before the hello: the peer has connected and closed.
bool is_silent_end(const Error& error) { return error.errno_value == ECONNRESET; }

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
  std::unique_lock lock(mutex_);
  for (Accepted& accepted : connections_) {
    if (!accepted.connection) continue;
    accepted.connection->shut_down();
    if (!accepted.thread.joinable()) accepted.connection = nullptr;  // refused: no thread serves it
  }
  changed_.wait(lock, [this] {
    return std::all_of(connections_.begin(), connections_.end(),
                       [](const Accepted& accepted) { return accepted.connection == nullptr; });
  });
  join_done_locked();
}

void Acceptor::close() {
  {
    std::lock_guard lock(mutex_);
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
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kAcceptPause, [this] { return closed_; });
  }
}

// Errors: ECANCELED when the listener is closed.
Status Acceptor::accept_connection() {
  auto connection = listener_.accept();
  if (!connection) return failure(connection.error());
  std::lock_guard lock(mutex_);
  if (connections_.size() >= kConnectionsMax && !evict_silent_locked()) {
    spdlog::warn("connection from {} refused: too many connections", (*connection)->peer());
    report_refused(**connection, "too many connections");
    return {};
  }
  Accepted& accepted = connections_.emplace_back();
  accepted.connection = std::move(*connection);
  start_thread_locked(accepted);
  return {};
}

// If no thread can start, sends the peer a reject in plain text: a source that expects TLS accepts
// a plain-text reject too.
void Acceptor::start_thread_locked(Accepted& accepted) {
  try {
    accepted.thread = std::thread([this, &accepted] { run(accepted); });
  } catch (const std::system_error& error) {
    const std::string text = std::string("the target cannot start a thread: ") + error.what();
    spdlog::warn("connection from {} refused: {}", accepted.connection->peer(), text);
    report_refused(*accepted.connection, text);
    send_reject(*accepted.connection, wire::RejectReason::kBusy, text);
  }
}

// Makes room for a connection.
bool Acceptor::evict_silent_locked() {
  for (Accepted& accepted : connections_) {
    if (accepted.hello_received || accepted.evicted || !accepted.connection) continue;
    accepted.connection->shut_down();
    accepted.evicted = true;
    return true;
  }
  return false;
}

void Acceptor::run(Accepted& accepted) {
  Status served;
  try {
    served = serve(accepted);
  } catch (const std::exception& exception) {
    served = failure(EIO, exception.what());
  }
  // A connection that ends before it has said anything is no fault: a source measures the round
  // trip so, and monitoring looks whether a port is open.
  const bool is_silent = !accepted.hello_received && !served && is_silent_end(served.error());
  if (!served && !is_silent) {
    spdlog::warn("connection from {}: {}", accepted.connection->peer(), served.error().message);
  }
  std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
    accepted.hello_received = true;
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
  std::lock_guard lock(mutex_);
  for (Accepted& accepted : connections_) {
    if (!accepted.connection) continue;
    const auto age = Clock::now() - accepted.since;
    const bool refused = !accepted.thread.joinable();
    if (refused && age > kRefusedTime) {
      accepted.connection = nullptr;
    } else if (!accepted.hello_received && age > 2 * hello_max_) {
      accepted.connection->shut_down();  // ends a peer that sends its hello byte by byte
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
