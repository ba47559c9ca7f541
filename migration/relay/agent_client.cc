#include "migration/relay/agent_client.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/host_name.h"
#include "base/json_text.h"
#include "base/parse_json.h"
#include "daemon/control/control_client.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/control/agent_frames.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The time limit of one attempt. The last attempt has only the time that is left.
constexpr milliseconds kAttempt{3000};
// Polls, because no event reports that a target is back.
constexpr milliseconds kBetweenAttempts{100};

}  // namespace

AgentEndpoint parse_endpoint(const nlohmann::json& json) {
  AgentEndpoint endpoint;
  endpoint.address = json.at("target");
  Credentials& credentials = endpoint.credentials;
  credentials.key_file = json.at("key_file");
  credentials.certificate = {json.at("tls_cert"), json.at("tls_key"), json.at("tls_ca")};
  credentials.allowed_peers = json.at("allowed_peers").get<std::vector<std::string>>();
  credentials.revocation_list = json.at("crl");
  credentials.target_name = json.at("target_name");
  credentials.insecure = json.at("insecure");
  return endpoint;
}

AgentClient::AgentClient(AgentEndpoint endpoint) : endpoint_(std::move(endpoint)) {}
AgentClient::~AgentClient() = default;

Status AgentClient::connect(milliseconds patience) {
  const milliseconds silence = endpoint_.silence_max;
  if (silence.count() > 0) patience = std::min(patience, silence);
  auto security = Security::load(endpoint_.credentials);
  if (!security) return failure(security.error());
  auto connector = (*security)->connector(endpoint_.address, endpoint_.role);
  if (!connector) return failure(connector.error());
  auto connection = (*connector)->connect(patience);
  if (!connection) return failure(connection.error());
  (*connection)->set_write_timeout(patience);
  const auto welcome = greet_target(**connection, wire::AgentHello{host_name()}, patience);
  if (!welcome) return failure(welcome.error());
  if (Status checked = (*connector)->check_target(**connection, welcome->target_name); !checked) {
    return failure(checked.error());
  }
  if (silence.count() > 0) (*connection)->set_silence_max(silence);
  node_name_ = welcome->target_name;
  connection_ = std::move(*connection);
  return {};
}

Result<nlohmann::json> AgentClient::ask(const nlohmann::json& request, milliseconds patience) {
  if (!connection_) {
    if (auto connected = connect(patience); !connected) return failure(connected.error());
  }
  Status sent = write_agent_frame(*connection_, json_text(request));
  if (sent) {
    auto text = read_agent_frame(*connection_, patience);
    if (text) {
      auto answer = parse_json(*text);
      if (answer.is_object()) return answer;
      sent =
          failure(EPROTO, "cannot parse the agent's reply (install the same ppmr on both nodes)");
    } else {
      sent = failure(text.error());
    }
  }
  connection_.reset();
  return failure(sent.error().errno_value, "send a request to the agent at " + endpoint_.address +
                                               ": " + sent.error().message);
}

Result<nlohmann::json> AgentClient::insist(const nlohmann::json& request, milliseconds patience) {
  auto answer = insist_on_answer(request, patience);
  if (!answer) return answer;
  if (Status verdict = accepted(*answer); !verdict) return failure(verdict.error());
  return answer;
}

Result<nlohmann::json> AgentClient::insist_on_answer(const nlohmann::json& request,
                                                     milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    auto answer = ask(request, std::clamp(left, milliseconds(1), kAttempt));
    if (answer) return answer;
    // A permanent error: the target lacks --allow-restart, or has another version.
    if (answer.error().errno_value == EPROTONOSUPPORT || left <= kBetweenAttempts) return answer;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace ppmr
