#include "jobs/agent/peers.h"

#include <nlohmann/json.hpp>

#include "base/host_name.h"
#include "base/json_text.h"
#include "base/parse_json.h"
#include "daemon/control/control_client.h"
#include "daemon/control/control_socket.h"
#include "jobs/agent/host_contacts.h"
#include "migration/relay/agent_client.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/control/agent_frames.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kHelloTimeout{10'000};
// This is long enough for three tries of TCP to connect (after 0, 1 and 3 s), and short compared
// with the time of a rollback.
constexpr std::chrono::milliseconds kSilenceMax{3'500};
// A peer sends its request without delay.
constexpr std::chrono::milliseconds kRequestTimeout{10'000};

}  // namespace

json answer_safely(const std::function<json()>& answer) {
  try {
    return answer();
  } catch (const json::exception& error) {
    return refusal({EINVAL, std::string("malformed request: ") + error.what()});
  } catch (const std::exception& error) {
    return refusal({EIO, std::string("the agent failed: ") + error.what()});
  }
}

Result<json> ask_peer(const PeerOptions& options, const std::string& host, const json& request,
                      std::chrono::milliseconds patience) {
  AgentClient client({.address = host + ":" + std::to_string(options.port),
                      .credentials = options.credentials,
                      .role = PeerRole::kJobAgent,
                      .silence_max = kSilenceMax});
  json named = request;
  named["asked"] = host;
  auto answer = client.ask(named, patience);
  if (!answer && answer.error().errno_value == ECONNREFUSED) {
    return failure(ECONNREFUSED, answer.error().message + " (does ppmr job agent run there?)");
  }
  if (!answer) return answer;
  if (Status status = accepted(*answer); !status) return failure(refusal_of_host(status.error()));
  return answer;
}

Result<std::unique_ptr<PeerServer>> PeerServer::create(const Credentials& credentials,
                                                       const std::string& address, Answer answer,
                                                       OnConnectionEvent on_event) {
  auto security = Security::load(credentials);
  if (!security) return failure(security.error());
  auto listener = (*security)->listener(address);
  if (!listener) return failure(listener.error());
  return std::unique_ptr<PeerServer>(new PeerServer(std::move(*security), std::move(*listener),
                                                    std::move(answer), std::move(on_event)));
}

PeerServer::PeerServer(std::shared_ptr<Security> security, std::unique_ptr<Listener> listener,
                       Answer answer, OnConnectionEvent on_event)
    : security_(std::move(security)),
      listener_(std::move(listener)),
      answer_(std::move(answer)),
      on_event_(std::move(on_event)),
      acceptor_(std::make_unique<Acceptor>(
          *listener_, kHelloTimeout,
          [this](const std::shared_ptr<Connection>& connection, const Handshake& hello) {
            return serve(*connection, hello);
          },
          on_event_)) {}

PeerServer::~PeerServer() { acceptor_->close(); }

Status PeerServer::serve(Connection& connection, const Handshake& hello) const {
  if (hello.kind != wire::HandshakeKind::kAgent) {
    send_reject(connection, wire::RejectReason::kBadHello,
                "this port is for the agents of jobs, not for ppmr source");
    return failure(EPROTO, "the peer at " + connection.peer() + " is not a job agent");
  }
  const PeerIdentity identity = connection.peer_identity();
  if (!identity.may_act_as(PeerRole::kJobAgent)) {
    const std::string text = wrong_role(identity, PeerRole::kJobAgent);
    send_reject(connection, wire::RejectReason::kNotAuthenticated, text);
    if (on_event_) {
      on_event_({.outcome = "refused",
                 .service = "job-agent",
                 .address = connection.peer(),
                 .peer = identity.text(),
                 .name = "",
                 .reason = text});
    }
    return failure(EACCES, text);
  }
  if (Status sent = send_handshake(connection, wire::HandshakeKind::kWelcome,
                                   wire::Welcome{.target_name = host_name()});
      !sent) {
    return sent;
  }
  const auto text = read_agent_frame(connection, kRequestTimeout);
  if (!text) return failure(text.error());
  const json request = parse_json(*text);
  if (!request.is_object()) {
    const Error malformed{EINVAL,
                          "malformed request: not a JSON object, or with a number out of range "
                          "(install the same ppmr on both nodes)"};
    return write_agent_frame(connection, json_text(refusal(malformed)));
  }
  const json answer = answer_safely([&] { return answer_(request); });
  return write_agent_frame(connection, json_text(answer));
}

}  // namespace ppmr
