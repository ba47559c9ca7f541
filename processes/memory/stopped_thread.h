// A thread of another process, stopped by ptrace(2). It loses no signal: those that arrive are
// delivered when it continues.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/result.h"

namespace ppmr {

// Threads: one; the calls come from the thread that has made the object. If that thread ends, the
// kernel lets the stopped thread continue.
class StoppedThread {
 public:
  // A thread that waits for a disk stops when the disk has answered.
  static constexpr std::chrono::milliseconds kPatience{500};
  // Once the registers of the thread are not its own, it must not go on before they are again: on a
  // busy machine a call of some microseconds takes seconds, until the thread gets a processor.
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
  // Calls ptrace(2). Errors: its own; the message says `what`.
  Status trace(int request, const char* what, void* data = nullptr) const;
  // Lets it run to the entry or the end of a system call, and waits without a limit. Errors:
  // EOPNOTSUPP if the call was dispatched to the thread itself
  // (prctl(PR_SET_SYSCALL_USER_DISPATCH)), which then knows nothing of it if SIGSYS is not blocked;
  // EIO if it gets signals without end.
  Status run_to_call_stop();
  // Lets it run until it stops where the kernel decides whether to restart a system call.
  Status run_to_restart_stop();

 private:
  explicit StoppedThread(pid_t thread) : thread_(thread) {}
  // Returns the status of waitpid(2). Errors: ETIMEDOUT, ESRCH.
  Result<int> await_stop(std::chrono::milliseconds patience) const;
  Status await_event_stop(std::chrono::milliseconds patience) const;
  bool was_call_dispatched(int status) const;

  pid_t thread_ = 0;          // 0: none is stopped
  unsigned long signal_ = 0;  // arrived in a system call
};

}  // namespace ppmr
