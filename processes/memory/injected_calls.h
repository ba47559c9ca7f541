// Lets a thread of a running process execute system calls, from outside (ptrace). Maps nothing in
// the process, uses the `syscall` instruction of its vdso, and restores the thread's registers and
// signal mask. The kernel restarts a system call that the thread was in. If the thread was in a
// restartable sequence, the call aborts the sequence, as each interruption does
// (restartable_sequence.h).
//
//   PTRACE_SEIZE, PTRACE_INTERRUPT     the thread stops; the others run on
//   registers: the call                PTRACE_SYSCALL to its entry, PTRACE_SYSCALL to its end
//   registers: as before               PTRACE_INTERRUPT, PTRACE_CONT: the thread stops once more
//                                      where the kernel decides to restart an interrupted call
//   PTRACE_DETACH
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "base/result.h"
#include "processes/memory/stopped_thread.h"

namespace ppmr {

// Threads: any may call with_injected_calls().
class InjectedCalls {
 public:
  InjectedCalls(InjectedCalls&& other) noexcept;
  ~InjectedCalls();  // the thread continues

  // The fourth argument and those after it are 0. Returns what the call returns: a negative errno
  // value if it fails. Errors: ESRCH if the process has ended; EOPNOTSUPP if calls are dispatched;
  // those of ptrace(2).
  Result<long> call(long number, std::array<uint64_t, 3> arguments);
  // Like call(), but passes the address of a copy of `memory` as argument `at`. The call may read
  // and write the copy, and `memory` gets what the call has written. The copy is in the thread's
  // own stack, and the stack has its old content afterwards. `memory`: at most kMemoryWords words.
  static constexpr size_t kMemoryWords = 4;
  Result<long> call_with_memory(long number, std::array<uint64_t, 3> arguments, size_t at,
                                std::span<uint64_t> memory);
  // Like call_with_memory(), for a call that writes one number. Returns this number, or nullopt if
  // the call fails.
  Result<std::optional<uint32_t>> call_for_number(long number, std::array<uint64_t, 3> arguments,
                                                  size_t at);
  // Returns whether the thread dispatches its own system calls
  // (prctl(PR_SET_SYSCALL_USER_DISPATCH)): an injected call would run its handler. Before Linux 6.4
  // this is known only after the kernel has dispatched a call().
  bool are_dispatched() const { return are_dispatched_; }

 private:
  friend Status with_injected_calls(pid_t pid, const std::function<Status(InjectedCalls&)>& work);
  static Result<InjectedCalls> stop(pid_t pid);
  explicit InjectedCalls(StoppedThread thread) : thread_(std::move(thread)) {}
  Status prepare();
  Status find_instruction();
  Error error(const char* what) const;

  StoppedThread thread_;
  uint64_t instruction_ = 0;
  uint64_t mask_ = 0;
  user_regs_struct registers_{};
  bool are_dispatched_ = false;
  bool is_prepared_ = false;
};

// Stops the thread with the id `pid` or, if it has ended, another thread of its process. Runs
// `work` in a new thread, which is the tracer. A thread in an uninterruptible system call does not
// stop in time. Only the end of its tracer releases such a thread: otherwise it would stop later,
// and stay stopped. Errors: those of `work`; EPERM without the right, or if another process traces
// it; EOPNOTSUPP for another machine language, a process that runs 32-bit code, one whose seccomp
// filter cannot be suspended, or a thread that may be in a restartable sequence which the kernel
// does not report; ETIMEDOUT if the thread does not stop; ESRCH.
Status with_injected_calls(pid_t pid, const std::function<Status(InjectedCalls&)>& work);

}  // namespace ppmr
