#include "processes/frozen_tasks.h"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

// Returns 0 if there is no tracer, -1 if the thread has ended.
pid_t tracer_of(pid_t pid, pid_t thread) {
  constexpr std::string_view kKey = "\nTracerPid:";
  const auto status = read_process_file(pid, "task/" + std::to_string(thread) + "/status");
  const size_t at = status ? status->find(kKey) : std::string::npos;
  return at == std::string::npos ? -1 : std::atoi(status->c_str() + at + kKey.size());
}

}  // namespace

Result<FrozenTasks> FrozenTasks::open(const std::vector<ProcessIdentity>& tasks) {
  FrozenTasks result;
  for (const ProcessIdentity& process : tasks) {
    if (process.pid == 0) continue;
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
    // EINVAL and ENOENT mean that the kernel is just removing the process, or that a thread has its
    // pid (EINVAL; since Linux 6.14 ENOENT).
    const bool is_gone = errno == ESRCH || errno == EINVAL || errno == ENOENT;
    if (!pidfd && !is_gone)
      return system_failure("open a pidfd of process", std::to_string(process.pid));
    // Checked after the open. If the process is alive now, it had this pid during the open, so the
    // pidfd refers to this process.
    if (pidfd && is_alive(process)) result.tasks_.push_back({process, std::move(pidfd)});
  }
  return result;
}

void FrozenTasks::signal(int number) const {
  // Ignores errors: the task has ended, or the caller has no CAP_KILL, which kill_tasks_of()
  // checks.
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

bool FrozenTasks::await_end(std::chrono::milliseconds patience) const {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + patience;
  for (const Task& task : tasks_) {
    pollfd fd{task.pidfd.get(), POLLIN, 0};
    int ended = 0;
    do {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      ended = poll(&fd, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    } while (ended < 0 && errno == EINTR);
    if (ended <= 0) return false;
  }
  return true;
}

Status FrozenTasks::check_held_by(pid_t tracer) const {
  for (const Task& task : tasks_) {
    const std::string pid = std::to_string(task.process.pid);
    const auto threads = read_threads(task.process.pid).value_or(std::vector<pid_t>());
    for (const pid_t thread : threads) {
      if (tracer_of(task.process.pid, thread) != tracer) {
        return failure(EBUSY,
                       "CRIU (pid " + std::to_string(tracer) + ") no longer holds process " + pid);
      }
    }
    if (threads.empty() || !is_alive(task.process)) {
      return failure(EBUSY, "process " + pid + " ended while it was frozen");
    }
  }
  return {};
}

Result<FrozenTasks> stop_trees(const std::vector<ProcessIdentity>& roots) {
  std::vector<ProcessIdentity> stopped;
  for (;;) {
    std::vector<ProcessIdentity> found;
    for (const ProcessIdentity& root : roots) {
      if (!is_alive(root)) continue;
      if (auto tasks = tasks_of_tree(root.pid)) {
        found.insert(found.end(), tasks->begin(), tasks->end());
      }
    }
    auto tasks = FrozenTasks::open(found);
    // Stopped processes do not fork. If a pass finds only stopped processes, it has found all of
    // them.
    if (!tasks || found == stopped) return tasks;
    tasks->stop();
    stopped = std::move(found);
  }
}

}  // namespace ppmr
