#include "processes/watched_tasks.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Of include/uapi/linux/pidfd.h.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t control_group = 0;
  std::array<uint32_t, 11> ids{};
  int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// The kernel knows it when somebody has reaped the process.
std::optional<int> status_of_reaped(int pidfd) {
  PidfdInfo info;
  info.mask = kInfoExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}

// It is the last number in /proc/PID/stat.
std::optional<int> status_of_zombie(pid_t pid) {
  const auto stat = read_process_stat(pid);
  if (!stat || !stat->is_dead()) return std::nullopt;
  const std::string text = read_process_file(pid, "stat").value_or("");
  const size_t last = text.rfind(' ');
  if (last == std::string::npos) return std::nullopt;
  return static_cast<int>(strtol(text.c_str() + last, nullptr, 10));
}

}  // namespace

bool is_crash(int status) {
  constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT};
  return WIFSIGNALED(status) &&
         std::find(kFaults.begin(), kFaults.end(), WTERMSIG(status)) != kFaults.end();
}

WatchedTasks::WatchedTasks(const std::vector<ProcessIdentity>& tasks) {
  for (const ProcessIdentity& task : tasks) {
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, task.pid, 0)));
    if (pidfd && is_alive(task)) tasks_.emplace_back(task, std::move(pidfd));
  }
}

std::optional<CrashedTask> WatchedTasks::crashed() const {
  for (const auto& [task, pidfd] : tasks_) {
    auto status = status_of_reaped(pidfd.get());
    if (!status && identify(task.pid) == task) status = status_of_zombie(task.pid);
    if (status && is_crash(*status)) return CrashedTask{task.pid, WTERMSIG(*status)};
  }
  return std::nullopt;
}

}  // namespace ppmr
