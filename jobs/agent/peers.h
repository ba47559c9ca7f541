// Requests between the agents of hosts. Agents authenticate each other like source and target; a
// host that holds the key, or an allowed certificate, acts as root on all hosts.
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
  uint16_t port = 0;  // the same on all hosts
};

// Asks the agent of `host`, which refuses if it has another name. The answer is {"ok":true,...}; a
// refusal is an Error. Other errors: those of AgentClient::ask(). Whether an Error is a refusal
// cannot be told: an answer that the caller acts on is in a field. Threads: any.
Result<nlohmann::json> ask_peer(const PeerOptions& options, const std::string& host,
                                const nlohmann::json& request, std::chrono::milliseconds patience);

// Answers the other agents. Threads: any; `answer` is called on one thread for each peer.
class PeerServer {
 public:
  using Answer = std::function<nlohmann::json(const nlohmann::json& request)>;
  // Listens on `address`. Errors: those of Security::load() and Security::listener().
  // `on_event` learns of refused connections; the agents connect too often for the others.
  static Result<std::unique_ptr<PeerServer>> create(const Credentials& credentials,
                                                    const std::string& address, Answer answer,
                                                    OnConnectionEvent on_event = {});
  ~PeerServer();
  // Joins the threads of ended connections. The owner calls this periodically.
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

// Calls `answer`; turns its exceptions into refusals.
nlohmann::json answer_safely(const std::function<nlohmann::json()>& answer);

}  // namespace ppmr
