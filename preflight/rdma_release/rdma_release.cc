#include "preflight/rdma_release/rdma_release.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <future>
#include <map>
#include <set>

#include "base/unique_fd.h"
#include "processes/proc_files.h"
#include "processes/sockets.h"
#include "processes/visit_namespace.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// The names of jobs/rdma_release.h. The '@' stands for the zero byte of an abstract name.
constexpr std::string_view kListed = "@ppmr-rdma-release/";
constexpr size_t kAnswerMaxBytes = 4096;
constexpr size_t kReasonMaxBytes = 256;

Status connect_to(int socket, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof(address.sun_path))
    return failure(EINVAL, "connect to the RDMA socket '" + name + "': the name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return system_failure("connect to the RDMA socket", name);
  }
  return {};
}

// Sends the request and reads the answer in the network namespace of the process.
Result<std::string> converse(const RdmaListener& listener, const std::string& request,
                             milliseconds patience) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return system_failure("create a socket for", listener.name);
  // Without a limit, connect(2) would wait for a stopped process that has not accepted earlier
  // connections yet.
  const timeval limit{patience.count() / 1000, patience.count() % 1000 * 1000};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const auto is_late = [&] {
    return failure(ETIMEDOUT, fmt::format("process {} does not {} its RDMA devices within {:.1f} s",
                                          listener.pid, request,
                                          static_cast<double>(patience.count()) / 1000));
  };
  if (Status connected = connect_to(socket.get(), listener.name); !connected) {
    return connected.error().errno_value == EAGAIN ? is_late() : failure(connected.error());
  }
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return system_failure("send a request to the RDMA socket", listener.name);
  }
  pollfd answer{.fd = socket.get(), .events = POLLIN, .revents = 0};
  if (poll(&answer, 1, static_cast<int>(patience.count())) <= 0) return is_late();
  char text[kAnswerMaxBytes];
  const ssize_t size = recv(socket.get(), text, sizeof(text), 0);
  if (size < 0) return system_failure("receive an answer from the RDMA socket", listener.name);
  return std::string(text, static_cast<size_t>(size));
}

Result<std::string> ask(const RdmaListener& listener, const std::string& request,
                        milliseconds patience) {
  Result<std::string> said = "";
  const Status visited =
      visit_namespace(listener.pid, "net", [&] { said = converse(listener, request, patience); });
  return visited ? said : failure(visited.error());
}

Error refusal(const RdmaListener& listener, const std::string& request, const std::string& said) {
  return {ECANCELED, fmt::format("process {} cannot {} its RDMA devices: {}", listener.pid, request,
                                 said.empty() ? "it closed the connection without an answer"
                                              : said.substr(0, kReasonMaxBytes))};
}

// Returns the pids of the trees whose roots are alive.
Result<std::vector<pid_t>> pids_of_trees(const std::vector<pid_t>& roots) {
  std::vector<pid_t> pids;
  for (const pid_t root : roots) {
    const auto tree = read_tree(root);
    if (!tree && tree.error().errno_value == ESRCH) continue;
    if (!tree) return failure(tree.error());
    for (const ProcessStat& process : *tree) pids.push_back(process.pid);
  }
  return pids;
}

bool has_ended(const Status& asked) {
  return !asked &&
         (asked.error().errno_value == ECONNREFUSED || asked.error().errno_value == ESRCH);
}

// Asks each process in a thread of its own: a process may release only after its partners in the
// same tree have answered. Errors: the first failure of a process that has not ended.
Status ask_all(const std::vector<RdmaListener>& listeners, const std::string& request,
               milliseconds patience) {
  std::vector<std::future<Status>> answers;
  for (const RdmaListener& listener : listeners) {
    answers.push_back(std::async(std::launch::async, [&listener, &request, patience] {
      return ask_rdma_listener(listener, request, patience);
    }));
  }
  Status first;
  for (std::future<Status>& answer : answers) {
    Status asked = answer.get();
    if (first && !asked && !has_ended(asked)) first = std::move(asked);
  }
  return first;
}

bool is_rdma(const std::string& path, const std::string& devices) {
  return path.starts_with(devices) || path == "anon_inode:[infinibandevent]";
}

// Searches the files that the process has open or mapped. Empty: none is below `devices`.
Result<std::string> find_device(pid_t pid, const std::string& devices) {
  const auto descriptors = read_descriptors(pid);
  if (!descriptors) return failure(descriptors.error());
  for (const Descriptor& descriptor : *descriptors) {
    if (is_rdma(descriptor.target, devices)) return descriptor.target;
  }
  const auto mappings = read_mappings(pid);
  if (!mappings) return failure(mappings.error());
  for (const Mapping& mapping : *mappings) {
    if (is_rdma(mapping.path, devices)) return mapping.path;
  }
  return "";
}

}  // namespace

Result<std::vector<RdmaListener>> find_rdma_listeners(const std::vector<pid_t>& pids) {
  std::map<std::string, UnixSockets> of_namespaces;
  std::set<uint64_t> found;
  std::vector<RdmaListener> listeners;
  for (const pid_t pid : pids) {
    const auto network = read_process_link(pid, "ns/net");
    const auto descriptors = read_descriptors(pid);
    if (!network || !descriptors) {
      const Error& error = network ? descriptors.error() : network.error();
      if (error.errno_value == ESRCH) continue;
      return failure(error);
    }
    if (!of_namespaces.contains(*network)) {
      auto sockets = read_unix_sockets(pid);
      if (!sockets && sockets.error().errno_value == ESRCH) continue;
      if (!sockets) return failure(sockets.error());
      of_namespaces[*network] = std::move(*sockets);
    }
    const UnixSockets& sockets = of_namespaces[*network];
    for (const Descriptor& descriptor : *descriptors) {
      const auto socket = sockets.find(inode_in(descriptor.target, "socket"));
      if (socket == sockets.end() || !socket->second.listens) continue;
      if (!socket->second.path.starts_with(kListed)) continue;
      if (found.insert(socket->first).second) {
        listeners.push_back({.pid = pid, .name = socket->second.path.substr(1)});
      }
    }
  }
  return listeners;
}

Status ask_rdma_listener(const RdmaListener& listener, const std::string& request,
                         milliseconds patience) {
  const auto said = ask(listener, request, patience);
  if (!said) return failure(said.error());
  if (*said == "ok") return {};
  return failure(refusal(listener, request, *said));
}

Result<RdmaCheck> check_rdma_listener(const RdmaListener& listener, milliseconds patience) {
  const auto said = ask(listener, "check", patience);
  if (!said) return failure(said.error());
  auto check = parse_rdma_check(*said);
  if (!check) return failure(refusal(listener, "check", *said));
  check->pid = listener.pid;
  return *check;
}

std::vector<RdmaCheck> check_rdma_listeners(const std::vector<RdmaListener>& listeners,
                                            milliseconds patience) {
  std::vector<std::future<Result<RdmaCheck>>> answers;
  for (const RdmaListener& listener : listeners) {
    answers.push_back(std::async(std::launch::async, [&listener, patience] {
      return check_rdma_listener(listener, patience);
    }));
  }
  std::vector<RdmaCheck> checks;
  for (size_t i = 0; i < listeners.size(); ++i) {
    auto check = answers[i].get();
    if (check) {
      checks.push_back(std::move(*check));
    } else if (check.error().errno_value == ETIMEDOUT) {
      checks.push_back({.pid = listeners[i].pid, .silence = check.error().message});
    }
  }
  return checks;
}

Status check_no_rdma(const std::vector<pid_t>& pids, const std::string& devices) {
  for (const pid_t pid : pids) {
    const auto device = find_device(pid, devices);
    if (!device && device.error().errno_value == ESRCH) continue;
    if (!device) return failure(device.error());
    if (device->empty()) continue;
    const auto process = read_process_stat(pid);
    return failure(EBUSY,
                   fmt::format("process {} ({}) still uses {} after the release of RDMA: its "
                               "messaging library must close it; or let it use TCP",
                               pid, process ? process->name : "", *device));
  }
  return {};
}

Result<size_t> release_rdma(const std::vector<pid_t>& roots, milliseconds patience,
                            const std::string& devices) {
  const auto pids = pids_of_trees(roots);
  if (!pids) return failure(pids.error());
  const auto listeners = find_rdma_listeners(*pids);
  if (!listeners) return failure(listeners.error());
  if (listeners->empty()) return 0;
  if (Status done = ask_all(*listeners, "release", patience); !done) return failure(done.error());
  // Reads the pids again, because processes may have begun in the meantime.
  const auto now = pids_of_trees(roots);
  if (!now) return failure(now.error());
  if (Status free = check_no_rdma(*now, devices); !free) return failure(free.error());
  return listeners->size();
}

std::optional<std::set<pid_t>> rdma_users_that_show_writes(const std::vector<pid_t>& roots,
                                                           milliseconds patience) {
  const auto pids = pids_of_trees(roots);
  if (!pids) return std::nullopt;
  const auto listeners = find_rdma_listeners(*pids);
  if (!listeners || listeners->empty()) return std::nullopt;
  const auto checks = check_rdma_listeners(*listeners, patience);
  if (checks.size() != listeners->size()) return std::nullopt;
  std::set<pid_t> users;
  for (const RdmaCheck& check : checks) {
    if (!check.shows_writes) return std::nullopt;
    users.insert(check.pid);
  }
  return users;
}

Status resume_rdma(const std::vector<pid_t>& roots, milliseconds patience) {
  const auto pids = pids_of_trees(roots);
  if (!pids) return failure(pids.error());
  const auto listeners = find_rdma_listeners(*pids);
  if (!listeners) return failure(listeners.error());
  return ask_all(*listeners, "resume", patience);
}

}  // namespace ppmr
