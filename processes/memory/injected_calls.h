// Lets a thread of a running process execute system calls, from outside (ptrace). Nothing is mapped
// or written in the process: its own `syscall` instruction is used, and the thread's registers and
// signal mask are put back. A system call that the thread was in is restarted by the kernel.
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
  // Like call(), but argument `at` becomes the address of `memory`, of at most kMemoryWords words,
  // which the call reads and may write: words of the thread's own stack that only the thread uses,
  // and that have their content again afterwards.
  static constexpr size_t kMemoryWords = 4;
  Result<long> call_with_memory(long number, std::array<uint64_t, 3> arguments, size_t at,
                                std::span<uint64_t> memory);
  // Like call_with_memory(), for a number that the call fills. Returns that number, or nullopt if
  // the call fails.
  Result<std::optional<uint32_t>> call_for_number(long number, std::array<uint64_t, 3> arguments,
                                                  size_t at);
  // Whether the thread dispatches its own system calls (prctl(PR_SET_SYSCALL_USER_DISPATCH)): an
  // injected one would call its handler. Before Linux 6.4 this is known after a call() that it has
  // dispatched.
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

// Stops a thread for `work`, which runs in a thread of its own: the thread with the id `pid`, or if
// it has ended another one of its process. A thread in a system call that cannot be interrupted
// does not stop in time, and only the end of its tracer lets go of it: else it would stop later,
// and stay so. Errors: those of `work`; EPERM without the right, or if another process traces it;
// EOPNOTSUPP for another machine language, a process that runs 32-bit code, or one whose seccomp
// filter cannot be suspended; ETIMEDOUT if the thread does not stop; ESRCH.
Status with_injected_calls(pid_t pid, const std::function<Status(InjectedCalls&)>& work);

}  // namespace ppmr
