#include "restart_loader/criu/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "processes/frozen_tasks.h"

namespace ppmr {

Result<ChildProcess> ChildProcess::start(const SpawnOptions& options) {
  auto pid = spawn(options);
  if (!pid) return failure(pid.error());
  ChildProcess child;
  child.pid_ = *pid;
  // Calls the system call by its number, because glibc 2.36 declares pidfd_open() without extern
  // "C".
  child.pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pidfd_) {
    const int why = errno;
    kill(child.pid_, SIGKILL);
    waitpid(child.pid_, nullptr, 0);
    child.pid_ = -1;
    return system_failure("watch the process of", options.argv[0], why);
  }
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = other.pid_;
    pidfd_ = std::move(other.pidfd_);
    wait_status_ = other.wait_status_;
  }
  return *this;
}

bool ChildProcess::ended() {
  if (!pidfd_ || wait_status_) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) wait_status_ = status;
  return wait_status_.has_value();
}

bool ChildProcess::was_killed() const { return wait_status_ && WIFSIGNALED(*wait_status_); }

std::string ChildProcess::how_it_ended() const {
  if (!wait_status_) return "is running";
  if (WIFSIGNALED(*wait_status_)) {
    const int number = WTERMSIG(*wait_status_);
    return "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(*wait_status_));
}

void ChildProcess::end() {
  if (!pidfd_ || ended()) return;
  // This process has not reaped the child yet, so the kernel cannot reuse the child's pid.
  const auto self = identify(pid_);
  const auto tree = self ? stop_trees({*self}) : Result<FrozenTasks>(failure(self.error()));
  if (tree) tree->kill();
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  wait_status_ = status;
}

}  // namespace ppmr
