// Accepts the connections of a listener and serves each on its own thread.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "rdma_stream/connection/connection_event.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/log_rate.h"

namespace ppmr {

// Returns the address in a Connection::peer(), without the port.
inline std::string_view host_of(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

// A connection is a stranger until its hello is accepted, and has a limited time to send the hello.
// The numbers of strangers, of strangers from one address, and of all connections are limited. This
// also limits threads and memory. At a limit the acceptor drops the newest stranger. It never drops
// a connection that is served. It drops a handshake only if the handshake has taken more than a
// second, so silent peers do not keep other peers out. An address with an authenticated connection
// is a guest: its connections take the place of strangers from other addresses. So a flood from
// other addresses does not prevent a session from reconnecting.
//
// If there is no place for a connection, or no thread can start, the acceptor refuses it: the peer
// receives the reason, kBusy. Connectors try again (security.h). Threads: any.
class Acceptor {
 public:
  using Milliseconds = std::chrono::milliseconds;
  // Serves an identified connection, whose first message is `hello`, until the connection ends. The
  // acceptor logs the error. It calls this function on the connection's own thread.
  using Serve = std::function<Status(const std::shared_ptr<Connection>&, const Handshake& hello)>;

  // Accepts connections from now on. `hello_max` limits the wait for a hello. `on_event` is called
  // for connections that are refused before `serve` is called. Throws std::system_error when the
  // thread cannot be started.
  Acceptor(Listener& listener, Milliseconds hello_max, Serve serve,
           OnConnectionEvent on_event = {});
  // Shuts all connections down and blocks until every call of `Serve` has returned.
  ~Acceptor();

  // Closes the listener. After it has returned, the acceptor accepts no further connection.
  void close();
  // Closes connections whose hello is late, and joins the threads of ended connections. The owner
  // calls this periodically.
  void tidy();

 private:
  using Clock = std::chrono::steady_clock;
  // Guarded by the acceptor's mutex_.
  struct Accepted {
    std::shared_ptr<Connection> connection;  // null when its thread is done
    std::thread thread;                      // empty if no thread could start
    Clock::time_point since = Clock::now();
    std::string host;  // the peer's address without its port
    bool hello_received = false;
    bool guest = false;  // the peer has authenticated, if the listener requires that
    bool dropped = false;

    bool is_stranger() const { return connection && !hello_received && !dropped; }
  };

  void accept_connections();
  Status accept_connection();
  void start_thread_locked(Accepted& accepted) PPMR_REQUIRES(mutex_);
  bool make_room_locked(const std::string& host) PPMR_REQUIRES(mutex_);
  void note_refusal(const std::string& peer, const std::string& why);
  void run(Accepted& accepted);
  Status serve(Accepted& accepted);
  void join_done_locked() PPMR_REQUIRES(mutex_);
  void report_refused(const Connection& connection, const std::string& reason) const;

  Listener& listener_;
  const Milliseconds hello_max_;
  const Serve serve_;
  const OnConnectionEvent on_event_;

  Mutex mutex_;
  CondVar changed_;
  std::list<Accepted> connections_ PPMR_GUARDED_BY(mutex_);  // in the order of acceptance
  bool closed_ PPMR_GUARDED_BY(mutex_) = false;

  LogRate refusals_;

  std::thread thread_;
};

}  // namespace ppmr
