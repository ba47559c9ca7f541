// Watches processes that are no children of this one, and tells which of them have crashed.
//
// One process watches, another one hands over: it knows the tasks while they cannot run yet, so
// that none can crash unseen. The kernel keeps what was handed over in a socket until the watcher
// reads it, and neither waits for the other.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// Whether the status, as of waitpid(2), is that of a process which a fault of its own has ended:
// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT. Other signals may be how programs end
// their children. Pure.
bool is_crash(int status);

struct CrashedTask {
  pid_t pid = 0;
  int signal = 0;
};

// Threads: one.
class WatchedTasks {
 public:
  WatchedTasks() = default;  // watches nothing
  // Takes tasks over from now on, at a socket in this directory. Errors: those of socket(2),
  // bind(2).
  static Result<WatchedTasks> listen(const std::string& directory);

  // Returns the first task of those handed over that has crashed. One that its parent has reaped is
  // found since Linux 6.15 only. Errors, if none of the others has crashed: EMFILE if this process
  // cannot watch so many; those of recvmsg(2).
  Result<std::optional<CrashedTask>> crashed();

 private:
  Status take_over();

  UniqueFd socket_;
  std::vector<std::pair<ProcessIdentity, UniqueFd>> tasks_;
};

// Hands the tasks to the process that listens in this directory. Never blocks. Leaves out those
// that have ended. Errors: ENOENT or ECONNREFUSED if none listens; ENOBUFS or EAGAIN if the kernel
// has no room for more; those of pidfd_open(2).
Status hand_over_tasks(const std::string& directory, const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
