#include "fuse_target/agent_bridge.h"

#include <chrono>

#include "base/line_socket.h"
#include "base/unique_fd.h"
#include "rdma_stream/control/agent_frames.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A connection without a request for this time is closed. A coordinator sends a request about every
// second.
constexpr milliseconds kIdleMax{60'000};
// The longest time to wait for an answer of the agent, which usually takes a few seconds. During
// the wait the bridge checks stopping_ every kStopInterval.
constexpr milliseconds kAnswerMax{60'000};
constexpr milliseconds kStopInterval{200};
constexpr milliseconds kWriteTimeout{10'000};

bool is_end_of_connection(const Error& error) {
  return error.errno_value == ECONNRESET || error.errno_value == ETIMEDOUT;
}

}  // namespace

Status AgentBridge::serve(Connection& connection, const std::string& node_name) {
  // Closing the socket ends the agent. No state is lost, because the agent keeps its decisions in
  // its records.
  const auto agent = helper_->start_agent(connection.peer_identity().owner(node_name));
  if (!agent) return failure(agent.error());
  connection.set_write_timeout(kWriteTimeout);
  return pass_messages(connection, agent->get());
}

Status AgentBridge::pass_messages(Connection& connection, int agent) {
  std::string pending;
  std::string line;
  while (!stopping_) {
    auto request = read_agent_frame(connection, kIdleMax);
    if (!request) {
      if (is_end_of_connection(request.error())) return {};
      return failure(request.error());
    }
    const auto now = std::chrono::steady_clock::now;
    if (auto sent = write_line(agent, *request, now() + kWriteTimeout); !sent) return sent;
    const auto deadline = now() + kAnswerMax;
    Status answered;
    do {
      answered = read_line(agent, pending, line, kAgentFrameMaxBytes, now() + kStopInterval);
    } while (!answered && answered.error().errno_value == ETIMEDOUT && !stopping_ &&
             now() < deadline);
    if (!answered) return failure(EIO, "ppmr migration-agent: " + answered.error().message);
    if (auto sent = write_agent_frame(connection, line); !sent) return sent;
  }
  return {};
}

}  // namespace ppmr
