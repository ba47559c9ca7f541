// Requests between the agents of hosts. Agents authenticate each other like source and target. A
// host that has the key, or an allowed certificate, acts as root on all hosts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "rdma_stream/connection/acceptor.h"
#include "rdma_stream/connection/security.h"

namespace ppmr {

struct PeerOptions {
  Credentials credentials;
  uint16_t port = 0;  // port of the agents; the same on all hosts
};

// Sends a request to the agent of `host`, and returns its answer {"ok":true,...}. An agent with
// another name refuses. A refusal is an Error, which the caller cannot distinguish from the errors
// of AgentClient::ask(). So an agent sends a refusal on which the caller acts in a field of the
// answer. Fails within 4 s after a host has died, however long `patience` is.
// Threads: any.
Result<nlohmann::json> ask_peer(const PeerOptions& options, const std::string& host,
                                const nlohmann::json& request, std::chrono::milliseconds patience);

// Answers the requests of the other agents. Threads: any. Calls `answer` on one thread for each
// peer.
class PeerServer {
 public:
  using Answer = std::function<nlohmann::json(const nlohmann::json& request)>;
  // Listens on `address`. Calls `on_event` for refused connections only, because the agents connect
  // too often. Errors: those of Security::load() and Security::listener().
  static Result<std::unique_ptr<PeerServer>> create(const Credentials& credentials,
                                                    const std::string& address, Answer answer,
                                                    OnConnectionEvent on_event = {});
  ~PeerServer();
  // Joins the threads of ended connections. The owner calls it about once a second.
  void tidy() { acceptor_->tidy(); }
  Security& security() { return *security_; }

 private:
  PeerServer(std::shared_ptr<Security> security, std::unique_ptr<Listener> listener, Answer answer,
             OnConnectionEvent on_event);
  Status serve(Connection& connection, const Handshake& hello) const;

  const std::shared_ptr<Security> security_;
  const std::unique_ptr<Listener> listener_;
  const Answer answer_;
  const OnConnectionEvent on_event_;
  std::unique_ptr<Acceptor> acceptor_;
};

// Calls `answer` and turns its exceptions into refusals.
nlohmann::json answer_safely(const std::function<nlohmann::json()>& answer);

}  // namespace ppmr
