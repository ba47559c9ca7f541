// The tasks of a tree that CRIU holds, in the hands of whoever decides about them.
//
// CRIU holds them by ptrace alone: were it killed, the kernel would let them run on. So they also
// get a SIGSTOP before anything is decided. It stays pending while CRIU holds them and takes effect
// the moment that CRIU is gone, before they execute a single instruction of their own.
#pragma once

#include <signal.h>

#include <vector>

#include "buffer_pool/unique_fd.h"
#include "restart_loader/processes/process_identity.h"

namespace ppmr {

// Threads: one.
class FrozenTasks {
 public:
  // Through pidfds, so that no signal of ours can reach a stranger. Tasks that have ended, and
  // those that never were (pid 0), are left out. Errors: of pidfd_open(2).
  static Result<FrozenTasks> open(const std::vector<ProcessIdentity>& tasks);

  size_t count() const { return tasks_.size(); }
  void stop() const { signal(SIGSTOP); }
  // Takes back what stop() did, also while it is pending.
  void let_go() const { signal(SIGCONT); }
  // A task with SIGKILL pending never executes an instruction of its own again.
  void kill() const { signal(SIGKILL); }
  // Until the last of them has ended. For tasks that were killed: others may take for ever.
  void await_end() const;
  // Whether every thread of every task is still held by `tracer`. Asked after stop(): then none of
  // them has run since CRIU froze it, and none of them will. Errors: EBUSY and who is not held.
  Status check_held_by(pid_t tracer) const;

 private:
  struct Task {
    ProcessIdentity process;
    UniqueFd pidfd;
  };
  void signal(int number) const;

  std::vector<Task> tasks_;
};

}  // namespace ppmr
