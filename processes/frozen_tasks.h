// Sends signals to the tasks of a tree that CRIU has frozen.
//
// CRIU holds the tasks only with ptrace: if CRIU is killed, the kernel lets the tasks run. So ppmr
// also sends them a SIGSTOP before the decision. The SIGSTOP stays pending while CRIU holds the
// tasks. It takes effect as soon as CRIU has ended, before the tasks execute another instruction of
// their program.
#pragma once

#include <signal.h>

#include <chrono>
#include <vector>

#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// Threads: one.
class FrozenTasks {
 public:
  // Opens a pidfd for each task, so no signal can reach another process that reuses the pid. Skips
  // tasks that have ended and empty identities (pid 0). Errors: those of open_pidfd() except ESRCH.
  // On success, the result has every task that is alive.
  static Result<FrozenTasks> open(const std::vector<ProcessIdentity>& tasks);

  size_t count() const { return tasks_.size(); }
  void stop() const { signal(SIGSTOP); }
  // Undoes stop(), even while the SIGSTOP is still pending.
  void resume() const { signal(SIGCONT); }
  // A task with a pending SIGKILL executes no further instruction of its program.
  void kill() const { signal(SIGKILL); }
  // Blocks until every task has ended. Without kill() this may block forever.
  void await_end() const;
  // Blocks at most for `patience`. Returns whether every task has ended.
  bool await_end(std::chrono::milliseconds patience) const;
  // Checks whether `tracer` still holds every thread of every task. If this succeeds after stop(),
  // no thread has run since CRIU froze it, and none will run before resume(). Errors: EBUSY; the
  // message has the pid of the task that is not held.
  Status check_held_by(pid_t tracer) const;

 private:
  struct Task {
    ProcessIdentity process;
    UniqueFd pidfd;
  };
  void signal(int number) const;

  std::vector<Task> tasks_;
};

// Stops the roots and all of their descendants with SIGSTOP, and returns these tasks. Skips roots
// that have ended. Errors: those of FrozenTasks::open() and read_tree(); some processes may be
// stopped then.
Result<FrozenTasks> stop_trees(const std::vector<ProcessIdentity>& roots);

// Calls `open`, which is FrozenTasks::open() or stop_trees(), until it succeeds. It fails while the
// node is short of descriptors or memory, and no event reports the end of such a shortage. For a
// caller that must not give up.
FrozenTasks insist_on_tasks(Result<FrozenTasks> (*open)(const std::vector<ProcessIdentity>&),
                            const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
