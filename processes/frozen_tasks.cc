#include "processes/frozen_tasks.h"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{10};

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
    auto pidfd = open_pidfd(process);
    if (pidfd) {
      result.tasks_.push_back({process, std::move(*pidfd)});
    } else if (pidfd.error().errno_value != ESRCH) {
      return failure(pidfd.error());
    }
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
    const auto alive = check_alive(task.process);
    if (!alive) return failure(alive.error());
    if (threads.empty() || !*alive) {
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
      const auto alive = check_alive(root);
      if (!alive) return failure(alive.error());
      if (!*alive) continue;
      const auto tasks = tasks_of_tree(root.pid);
      if (tasks) {
        found.insert(found.end(), tasks->begin(), tasks->end());
      } else if (tasks.error().errno_value != ESRCH) {
        return failure(tasks.error());
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

FrozenTasks insist_on_tasks(Result<FrozenTasks> (*open)(const std::vector<ProcessIdentity>&),
                            const std::vector<ProcessIdentity>& tasks) {
  for (;;) {
    if (auto opened = open(tasks)) return std::move(*opened);
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace ppmr
