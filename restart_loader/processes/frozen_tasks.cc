#include "restart_loader/processes/frozen_tasks.h"

#include <poll.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

pid_t tracer_of(const std::filesystem::path& thread) {
  std::ifstream file(thread / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("TracerPid:")) return std::atoi(line.c_str() + 10);
  }
  return -1;
}

}  // namespace

Result<FrozenTasks> FrozenTasks::open(const std::vector<ProcessIdentity>& tasks) {
  FrozenTasks result;
  for (const ProcessIdentity& process : tasks) {
    if (process.pid == 0) continue;
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
    if (!pidfd && errno != ESRCH)
      return system_failure("watch process", std::to_string(process.pid));
    // Looked at after the pidfd was opened: from then on the number is not given to anybody else.
    if (pidfd && is_alive(process)) result.tasks_.push_back({process, std::move(pidfd)});
  }
  return result;
}

void FrozenTasks::signal(int number) const {
  // The only error there can be: it has ended.
  for (const Task& task : tasks_) {
    (void)syscall(SYS_pidfd_send_signal, task.pidfd.get(), number, nullptr, 0);
  }
}

void FrozenTasks::await_end() const {
  for (const Task& task : tasks_) {
    pollfd fd{task.pidfd.get(), POLLIN, 0};
    while (poll(&fd, 1, -1) < 0 && errno == EINTR) {
    }
  }
}

Status FrozenTasks::check_held_by(pid_t tracer) const {
  for (const Task& task : tasks_) {
    const std::string pid = std::to_string(task.process.pid);
    bool threads = false;
    std::error_code error;
    for (const auto& thread :
         std::filesystem::directory_iterator("/proc/" + pid + "/task", error)) {
      threads = true;
      if (tracer_of(thread.path()) != tracer) {
        return failure(EBUSY, "process " + pid + " is no longer held by CRIU (pid " +
                                  std::to_string(tracer) + ")");
      }
    }
    if (!threads || !is_alive(task.process)) {
      return failure(EBUSY, "process " + pid + " has ended while it was frozen");
    }
  }
  return {};
}

}  // namespace ppmr
