// Asks the agent of the target's node. Every request may be asked again when its answer got lost:
// what an agent is told are facts that stay true (the source has decided, its tasks are dead).
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

// Where a source's target listens, and what the source shows it of itself.
struct AgentEndpoint {
  std::string address;
  Credentials credentials;
};
// From what the source's daemon answers to {"op":"way"}, or from a record; may throw
// nlohmann::json::exception.
AgentEndpoint parse_endpoint(const nlohmann::json& json);

// Threads: one.
class AgentClient {
 public:
  explicit AgentClient(AgentEndpoint endpoint);
  ~AgentClient();

  // One request, one answer {"ok":...} as the agent gave it; connects first where need be. Errors
  // are of the way there: ECONNREFUSED with the target's reason, ETIMEDOUT, ECONNRESET ...; the
  // connection is given up then, and made again by the next call.
  Result<nlohmann::json> ask(const nlohmann::json& request, std::chrono::milliseconds patience);
  // The same until it is answered or `patience` is over, and a refusal is an error, too.
  Result<nlohmann::json> insist(const nlohmann::json& request, std::chrono::milliseconds patience);

  const std::string& node_name() const { return node_name_; }  // empty before the first answer

 private:
  Status connect(std::chrono::milliseconds patience);

  const AgentEndpoint endpoint_;
  std::string node_name_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace ppmr
