// A thread of another process, stopped by ptrace(2). It loses no signal: the kernel delivers the
// signals that have arrived when the thread continues.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/result.h"

namespace ppmr {

// Threads: one, the thread that has created the object. If that thread ends, the kernel lets the
// stopped thread continue.
class StoppedThread {
 public:
  // A thread that waits for a disk stops when the disk has answered.
  static constexpr std::chrono::milliseconds kPatience{500};
  // While the thread has the registers of an injected call, it must not go on with its program. A
  // call of some microseconds takes seconds on a busy machine, until the thread gets a processor.
  // So the wait for its end has no limit.
  static constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};

  // Errors: EPERM without the right, or if another process traces it; ETIMEDOUT if it does not
  // stop; ESRCH.
  static Result<StoppedThread> stop(pid_t thread);
  // The two steps of stop(), for many threads at once.
  static Result<StoppedThread> ask_to_stop(pid_t thread);
  Status await_stopped(std::chrono::milliseconds patience = kPatience) const;
  StoppedThread(StoppedThread&& other) noexcept;
  ~StoppedThread();  // the thread continues

  pid_t id() const { return thread_; }
  // Calls ptrace(2). Errors: those of ptrace(2); the message says `what`.
  Status trace(int request, const char* what, void* data = nullptr) const;
  // Lets the thread run to the entry or the end of a system call, and waits without a limit. If a
  // signal other than SIGSTOP arrives, blocks all signals of the thread: the caller restores its
  // signal mask. Errors: EOPNOTSUPP if the kernel has dispatched the call to the thread itself
  // (prctl(PR_SET_SYSCALL_USER_DISPATCH)); EIO if the thread gets signals without end. If SIGSYS is
  // not blocked, the thread does not notice a dispatched call.
  Status run_to_call_stop();
  // Lets the thread run until it stops where the kernel decides whether to restart a system call.
  Status run_to_restart_stop();

 private:
  explicit StoppedThread(pid_t thread) : thread_(thread) {}
  // Returns the status of waitpid(2). Errors: ETIMEDOUT, ESRCH.
  Result<int> await_stop(std::chrono::milliseconds patience) const;
  Status await_event_stop(std::chrono::milliseconds patience) const;
  bool was_call_dispatched(int status) const;

  pid_t thread_ = 0;  // 0: none is stopped
};

}  // namespace ppmr
