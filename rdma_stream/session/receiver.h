// The target's side of the stream: keeps one session per source, assigns connections to sessions,
// and ends the sessions whose source has failed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/connection/acceptor.h"
#include "rdma_stream/session/incoming_session.h"

namespace ppmr {

struct ReceiverOptions {
  std::chrono::milliseconds peer_timeout{10'000};
  std::string target_name;
  TargetTransport transport;
  // --trusted-fabric: chunks need no encryption. A session still encrypts unless its source also
  // has the option.
  bool trusted_fabric = false;
  // The names of the peers whose agents are served; empty: all accepted peers.
  std::vector<std::string> restart_peers;
  OnConnectionEvent on_event;
  // Serves a connection that begins with a hello to the agent, and returns when the connection
  // ends. If this function is empty, the receiver refuses such connections. The receiver calls it
  // on the connection's own thread. The receiver's destructor shuts the connection down.
  std::function<Status(Connection&, const std::string& node_name)> serve_agent;
};

// Sums over all sessions, including ended ones. They never decrease.
struct ReceiverTotals {
  uint64_t wire_bytes = 0;
  uint64_t chunks = 0;         // chunks that have landed
  uint64_t crc_failures = 0;   // wrong chunks, not encrypted
  uint64_t aead_failures = 0;  // wrong chunks, encrypted
  uint64_t pulled_again = 0;
  uint64_t waits_for_space = 0;

  void add(const SessionReport& session);
};

// When no thread or memory is free, the receiver refuses the new connection or session with an
// error that the source receives, and continues.
//
// Threads: any. The sink must live longer than the receiver. The receiver holds no lock while it
// calls the sink, and the functions for the sink never wait for a source. So the sink may call them
// while it holds its own locks.
class Receiver {
 public:
  // Throws std::system_error when a thread cannot be started.
  Receiver(ReceiverOptions options, std::unique_ptr<Listener> listener, Sink& sink);
  // Ends all sessions: checkpoints that are not sealed fail.
  ~Receiver();

  // Called by the sink. Has no effect on sessions that have ended.
  void space_freed();
  void prioritize(NodeKey file, uint64_t offset, uint64_t length);
  // Requests bytes that the source has not announced. Has no effect if the source cannot send them
  // before other bytes.
  void want(NodeKey file, uint64_t offset, uint64_t length);
  void notify_removed(NodeKey checkpoint);
  // Requests the source to seal. Errors: ENOTCONN when the session has ended.
  Status request_seal(NodeKey checkpoint);

  std::vector<SessionReport> sessions() const;
  ReceiverTotals totals() const;
  const std::string& address() const { return listener_->address(); }

 private:
  using SessionPointer = std::shared_ptr<IncomingSession>;
  struct EndedSession {
    wire::Token session{};
    wire::Token token{};
    std::string reason;
  };

  Status serve(const std::shared_ptr<Connection>& connection, const Handshake& hello);
  Status serve_control(const std::shared_ptr<Connection>& connection, const Handshake& handshake);
  Status attach_data(std::shared_ptr<Connection> connection, const Handshake& handshake);
  Status serve_agent(Connection& connection, const Handshake& handshake);
  Status check_agent(const Connection& connection, const std::string& node_name) const;
  Status refuse(Connection& connection, wire::RejectReason reason, ConnectionEvent event,
                const Error& error) const;
  void report(const Connection& connection, ConnectionEvent event) const;
  std::vector<SessionPointer> all_sessions() const;
  SessionPointer find(SessionId id) const;
  SessionPointer find(const wire::ControlHello& hello, const PeerIdentity& identity) const;
  SessionPointer find(const wire::DataHello& hello) const;
  Result<SessionPointer> open_session(const wire::ControlHello& hello, Connection& connection);
  std::string why_unknown(const wire::ControlHello& hello) const;
  void run_watcher();
  void watch_sessions();
  void end_session(const SessionPointer& session, const Error& reason);

  const ReceiverOptions options_;
  const SessionTimings timings_;
  const std::unique_ptr<Listener> listener_;
  Sink& sink_;
  const std::shared_ptr<Decompressor> decompressor_ = std::make_shared<Decompressor>();

  mutable Mutex mutex_;
  CondVar stop_requested_;
  std::map<SessionId, SessionPointer> sessions_ PPMR_GUARDED_BY(mutex_);
  SessionId last_session_ PPMR_GUARDED_BY(mutex_) = 0;
  // The sessions that ended last; the receiver reports to their sources why they ended.
  std::deque<EndedSession> ended_ PPMR_GUARDED_BY(mutex_);
  ReceiverTotals ended_totals_ PPMR_GUARDED_BY(mutex_);  // totals of the sessions that have ended
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;

  wire::Space space_;  // the sink's space at the last check; only the watcher uses it

  std::optional<Acceptor> acceptor_;
  std::thread watcher_;
};

}  // namespace ppmr
