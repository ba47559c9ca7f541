#include "jobs/command/job_init.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/exit_code.h"
#include "base/whole_file.h"
#include "jobs/command/command.h"
#include "jobs/command/command_server.h"
#include "jobs/command/peer_directory_server.h"

namespace ppmr {
namespace {

// MPI launchers take only the path of a program, without arguments.
constexpr const char* kRshScript = "#!/bin/sh\nexec /run/ppmr-program job rsh \"$@\"\n";

// The number includes clients that do not belong to the job, until they have exceeded the time
// limit for their request.
constexpr size_t kClientsMax = 1024;

void on_child_end(int) {}  // the handler makes poll(2) return

// Other job nodes of the same network can connect, too, but they do not have the token.
Result<UniqueFd> listen_for_clients() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(kCommandPort);
  if (!listener || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return system_failure("listen on", "port " + std::to_string(kCommandPort));
  }
  return listener;
}

// Reaps ended children. `servers`: the processes that serve clients. All other children are orphans
// of commands.
void reap(std::set<pid_t>& servers) {
  for (pid_t pid = 0; (pid = waitpid(-1, nullptr, WNOHANG)) > 0;) servers.erase(pid);
}

// Starts a process for each client, as inetd(8) does. So a client that crashes its process does not
// harm other clients. Returns the pid.
pid_t serve(UniqueFd client, const std::string& token,
            const std::vector<std::string>& environment) {
  if (const pid_t pid = fork(); pid != 0) return pid;
  setsid();
  const int on = 1;
  setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  signal(SIGCHLD, SIG_DFL);
  serve_command(std::move(client), token, environment);
  _exit(0);
}

// Returns the variables for all commands (NAME=value), and removes them from the environment of
// this process.
std::vector<std::string> take_environment_for_commands() {
  const std::string_view prefix = kForCommands;
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with(prefix)) found.emplace_back(text.substr(prefix.size()));
  }
  for (const std::string& variable : found) {
    unsetenv((std::string(prefix) + variable.substr(0, variable.find('='))).c_str());
  }
  return found;
}

// Starts the directory of peers in its own process, as for commands.
Status start_peer_directory(const std::string& token) {
  const auto listener = listen_for_peers();
  if (!listener) return failure(listener.error());
  const pid_t pid = fork();
  if (pid < 0) return system_failure("start", "the directory of peers");
  if (pid > 0) return {};
  setsid();
  serve_peer_directory(*listener, token);
}

}  // namespace

int JobInit::run() {
  const char* variable = std::getenv("PPMR_JOB_TOKEN");
  const std::string token = variable != nullptr ? variable : "";
  unsetenv("PPMR_JOB_TOKEN");
  // CRIU dumps a session only together with its leader, but the leader of the session from runc is
  // outside of the container. So this process begins a session.
  setsid();
  if (token.empty() || !write_whole_file(kTokenFile, token, O_EXCL, 0400) ||
      !write_whole_file(kRshFile, kRshScript, O_EXCL, 0500)) {
    return to_int(ExitCode::kFailure);
  }
  const auto for_commands = take_environment_for_commands();
  if (std::getenv(kIsPeerDirectory) != nullptr && !start_peer_directory(token)) {
    return to_int(ExitCode::kFailure);
  }
  auto listener = listen_for_clients();
  if (!listener) return to_int(ExitCode::kFailure);
  signal(SIGCHLD, on_child_end);
  std::set<pid_t> servers;
  for (;;) {
    reap(servers);
    // If a child ends between reap() and poll(2), the next round reaps it.
    pollfd readable{listener->get(), POLLIN, 0};
    if (poll(&readable, 1, 1000) <= 0) continue;
    UniqueFd client(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client && servers.size() < kClientsMax) {
      servers.insert(serve(std::move(client), token, for_commands));
    }
  }
}

}  // namespace ppmr
