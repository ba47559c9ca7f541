#include "fuse_target/agent_bridge.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>

#include "buffer_pool/unique_fd.h"
#include "mount/control/line_socket.h"
#include "rdma_stream/control/agent_frames.h"

extern char** environ;

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A coordinator asks every second or so as long as it lives.
constexpr milliseconds kIdleMax{60'000};
// The agent answers every request within a few seconds; the look at `stopping_` in between.
constexpr milliseconds kAnswerMax{60'000};
constexpr milliseconds kStopInterval{200};
constexpr milliseconds kWriteTimeout{10'000};
constexpr int kAgentsSocket = 3;  // under which the agent finds it

struct AgentProcess {
  pid_t pid = -1;
  UniqueFd socket;
  // The agent ends when its socket does; what it has decided is in its records.
  ~AgentProcess() {
    socket.reset();
    while (pid > 0 && waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
};

Status start(const std::vector<std::string>& arguments, AgentProcess& agent) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("make a socket for", "an agent");
  }
  agent.socket = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kAgentsSocket);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaddset(&signals, number);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const int errno_value =
      posix_spawn(&agent.pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errno_value != 0) {
    agent.pid = -1;
    return system_failure("start", "ppmr migration-agent", errno_value);
  }
  return {};
}

bool is_the_end(const Error& error) {
  return error.errno_value == ECONNRESET || error.errno_value == ETIMEDOUT;
}

}  // namespace

Status AgentBridge::serve(Connection& connection, const std::string& node_name) {
  AgentProcess agent;
  // With a shared key all are equal: the name only tells them apart.
  const PeerIdentity identity = connection.peer_identity();
  const bool named = identity.method == PeerIdentity::Method::kCertificate;
  const Status started = start({"ppmr", "migration-agent", "--fd", std::to_string(kAgentsSocket),
                                "--state-dir", options_.state_directory, "--mountpoint",
                                options_.mountpoint, "--peer", named ? identity.name : node_name},
                               agent);
  if (!started) return started;
  connection.set_write_timeout(kWriteTimeout);
  return pass_messages(connection, agent.socket.get());
}

Status AgentBridge::pass_messages(Connection& connection, int agent) {
  std::string pending;
  std::string line;
  while (!stopping_) {
    auto request = read_agent_frame(connection, kIdleMax);
    if (!request) {
      if (is_the_end(request.error())) return {};
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
    if (!answered) return failure(EIO, "the agent: " + answered.error().message);
    if (auto sent = write_agent_frame(connection, line); !sent) return sent;
  }
  return {};
}

}  // namespace ppmr
