// Sends requests to the agent at the target (agent_requests.h). Requests are idempotent: the client
// may repeat a request whose reply was lost.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

// The address of a source's target and the credentials that the source shows to it.
struct AgentEndpoint {
  std::string address;
  Credentials credentials;
  PeerRole role = PeerRole::kMigrate;  // the role of the source's end
  // A machine that is silent for longer counts as dead, even while it processes a request that
  // takes longer. Zero: the limits are the patience for a connection, and about 11 s for a reply.
  std::chrono::milliseconds silence_max{0};
};
// Parses what read_endpoint() returns, or the endpoint in a record. Throws
// nlohmann::json::exception if a field is missing.
AgentEndpoint parse_endpoint(const nlohmann::json& json);

// Threads: one.
class AgentClient {
 public:
  explicit AgentClient(AgentEndpoint endpoint);
  ~AgentClient();

  // Sends one request and returns the reply {"ok":...}, which may be a refusal. Connects first if
  // necessary. The errors are those of the connection: ECONNREFUSED with the target's reason,
  // ETIMEDOUT, ECONNRESET ...; the next call connects again.
  Result<nlohmann::json> ask(const nlohmann::json& request, std::chrono::milliseconds patience);
  // Repeats the request until there is a reply, which may be a refusal, or `patience` has passed.
  Result<nlohmann::json> insist_on_answer(const nlohmann::json& request,
                                          std::chrono::milliseconds patience);
  // Does what insist_on_answer() does, but a refusal is an error, too.
  Result<nlohmann::json> insist(const nlohmann::json& request, std::chrono::milliseconds patience);

  const std::string& node_name() const { return node_name_; }  // empty before the first reply

 private:
  Status connect(std::chrono::milliseconds patience);

  const AgentEndpoint endpoint_;
  std::string node_name_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace ppmr
