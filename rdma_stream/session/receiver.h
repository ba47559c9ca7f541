// The target's side of the stream: accepts sources, keeps a session for each, and ends those whose
// source has gone.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/session/incoming_session.h"

namespace ppmr {

struct ReceiverOptions {
  // A source that was not heard for so long has failed.
  std::chrono::milliseconds peer_timeout{10'000};
  std::string target_name;
  TargetTransport transport;
  // Serves a connection that said an agent's hello, until it ends; empty: such are refused. Called
  // on a thread of its own; the connection is shut down when the receiver ends.
  std::function<Status(Connection&, const std::string& node_name)> serve_agent;
};

// Threads: any. The sink outlives the receiver. No lock is held while the sink is called, so the
// sink may call back, also with its own locks held: none of the functions below waits for a source.
class Receiver {
 public:
  Receiver(ReceiverOptions options, std::unique_ptr<Listener> listener, Sink& sink);
  // Ends all sessions: what is not sealed has failed.
  ~Receiver();

  // To be called by the sink; without effect for sessions that have ended.
  void space_freed();
  void hurry(NodeKey file, uint64_t offset, uint64_t length);
  void tell_removed(NodeKey checkpoint);
  // Asks the source to seal. Errors: ENOTCONN when the session has ended.
  Status request_seal(NodeKey checkpoint);

  std::vector<SessionReport> sessions() const;
  const std::string& address() const { return listener_->address(); }

 private:
  using SessionPointer = std::shared_ptr<IncomingSession>;
  struct Guest {  // a connection and the thread that serves it; guarded by mutex_
    std::shared_ptr<Connection> connection;
    std::thread thread;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool greeted = false;  // has said its hello
    bool sent_away = false;
    bool done = false;
  };
  struct EndedSession {
    wire::Token session{};
    wire::Token token{};
    std::string reason;
  };

  void accept_connections();
  bool send_away_stranger_locked();
  void welcome(Guest& guest);
  Status serve(Guest& guest);
  Status welcome_control(std::shared_ptr<Connection> connection, const Handshake& handshake);
  Status welcome_data(std::shared_ptr<Connection> connection, const Handshake& handshake);
  Status welcome_agent(Connection& connection, const Handshake& handshake);
  SessionPointer find(SessionId id) const;
  SessionPointer find(const wire::ControlHello& hello, const PeerIdentity& identity) const;
  SessionPointer find(const wire::DataHello& hello) const;
  Result<SessionPointer> open_session(const wire::ControlHello& hello,
                                      const PeerIdentity& identity);
  std::string why_unknown(const wire::ControlHello& hello) const;
  void watch_sessions();
  void end_session(const SessionPointer& session, const Error& reason);
  void reap_guests(bool all);

  const ReceiverOptions options_;
  const SessionTimings timings_;
  const std::unique_ptr<Listener> listener_;
  Sink& sink_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<SessionId, SessionPointer> sessions_;
  SessionId last_session_ = 0;
  std::deque<EndedSession> ended_;  // the last few, so that their sources learn why
  std::list<Guest> guests_;
  bool stopping_ = false;

  std::thread acceptor_;
  std::thread watcher_;
};

}  // namespace ppmr
