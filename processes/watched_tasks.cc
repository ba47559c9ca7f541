#include "processes/watched_tasks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>

#include "base/message_socket.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

// struct pidfd_info of include/uapi/linux/pidfd.h.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t control_group = 0;
  std::array<uint32_t, 11> ids{};
  int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// Returns the exit status of a process that its parent has reaped. The kernel keeps it in the
// pidfd.
std::optional<int> status_of_reaped(int pidfd) {
  PidfdInfo info;
  info.mask = kInfoExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}

// The exit status is the last number in /proc/PID/stat.
std::optional<int> status_of_zombie(pid_t pid) {
  const auto stat = read_process_stat(pid);
  if (!stat || !stat->is_dead()) return std::nullopt;
  const std::string text = read_process_file(pid, "stat").value_or("");
  const size_t last = text.rfind(' ');
  if (last == std::string::npos) return std::nullopt;
  return static_cast<int>(strtol(text.c_str() + last, nullptr, 10));
}

// The data of a packet of tasks. The packet also passes one pidfd for each task.
struct HandedTasks {
  uint32_t count = 0;
  std::array<ProcessIdentity, kDescriptorsMax> tasks{};
};

// The address of the socket in a directory. It names the directory by a descriptor, because the
// path may be too long for a socket's address.
struct Address {
  explicit Address(const std::string& directory)
      : held(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    const std::string name = fmt::format("/proc/self/fd/{}/tasks.socket", held.get());
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  UniqueFd held;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
};

UniqueFd packet_socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

bool is_crash(int status) {
  constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT};
  return WIFSIGNALED(status) &&
         std::find(kFaults.begin(), kFaults.end(), WTERMSIG(status)) != kFaults.end();
}

Result<WatchedTasks> WatchedTasks::listen(const std::string& directory) {
  WatchedTasks watched;
  watched.socket_ = packet_socket();
  const Address address(directory);
  unlink(address.address.sun_path);
  if (bind(watched.socket_.get(), address.get(), sizeof(address.address)) != 0) {
    return system_failure("listen for tasks in", directory);
  }
  return watched;
}

Status WatchedTasks::take_over() {
  for (;;) {
    std::vector<UniqueFd> pidfds;
    const auto handed =
        receive_message<HandedTasks>(socket_.get(), "the hook", kDescriptorsMax, &pidfds);
    if (!handed && handed.error().errno_value == EAGAIN) return {};
    if (!handed) return failure(handed.error());
    for (size_t i = 0; i < std::min<size_t>(handed->count, pidfds.size()); ++i) {
      tasks_.emplace_back(handed->tasks[i], std::move(pidfds[i]));
    }
  }
}

Result<std::optional<CrashedTask>> WatchedTasks::crashed() {
  const Status taken = socket_ ? take_over() : Status{};
  for (const auto& [task, pidfd] : tasks_) {
    auto status = status_of_reaped(pidfd.get());
    if (!status && identify(task.pid) == task) status = status_of_zombie(task.pid);
    if (status && is_crash(*status)) return CrashedTask{task.pid, WTERMSIG(*status)};
  }
  if (!taken) return failure(taken.error());
  return std::nullopt;
}

Status hand_over_tasks(const std::string& directory, const std::vector<ProcessIdentity>& tasks) {
  const UniqueFd socket = packet_socket();
  const Address address(directory);
  if (connect(socket.get(), address.get(), sizeof(address.address)) != 0) {
    return system_failure("hand over the tasks in", directory);
  }
  for (size_t begin = 0; begin < tasks.size(); begin += kDescriptorsMax) {
    HandedTasks handed;
    std::vector<UniqueFd> pidfds;
    for (size_t i = begin; i < std::min(begin + kDescriptorsMax, tasks.size()); ++i) {
      auto pidfd = open_pidfd(tasks[i]);
      if (!pidfd && pidfd.error().errno_value == ESRCH) continue;
      if (!pidfd) {
        return failure(pidfd.error().errno_value,
                       "hand over the tasks in " + directory + ": " + pidfd.error().message);
      }
      handed.tasks[handed.count++] = tasks[i];
      pidfds.push_back(std::move(*pidfd));
    }
    if (Status sent = send_message(socket.get(), handed, "the supervisor", pidfds); !sent) {
      return sent;
    }
  }
  return {};
}

}  // namespace ppmr
