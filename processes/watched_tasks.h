// Watches processes that are not children of this one, and reports which of them have crashed.
//
// One process watches. Another process hands the tasks over while they cannot run yet, so that none
// can crash unseen. The kernel keeps the tasks in a socket until the watcher reads them, so neither
// process waits for the other.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// Returns whether a status from waitpid(2) means that a fault of the process itself has ended it:
// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT. Programs may end their children with
// other signals. Pure.
bool is_crash(int status);

struct CrashedTask {
  pid_t pid = 0;
  int signal = 0;
};

// Threads: one.
class WatchedTasks {
 public:
  WatchedTasks() = default;  // watches nothing
  // Takes over tasks at a socket in this directory. Errors: those of socket(2), bind(2).
  static Result<WatchedTasks> listen(const std::string& directory);

  // Returns the first handed-over task that has crashed. Before Linux 6.15 it misses a task that
  // its parent has reaped. Errors, if no watched task has crashed: EMFILE if this process cannot
  // watch so many tasks; those of recvmsg(2).
  Result<std::optional<CrashedTask>> crashed();

 private:
  Status take_over();

  UniqueFd socket_;
  std::vector<std::pair<ProcessIdentity, UniqueFd>> tasks_;
};

// Hands the tasks to the process that listens in this directory. Never blocks. Skips tasks that
// have ended. Errors: ENOENT or ECONNREFUSED if no process listens; ENOBUFS or EAGAIN if the kernel
// has no room for more; those of pidfd_open(2).
Status hand_over_tasks(const std::string& directory, const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
