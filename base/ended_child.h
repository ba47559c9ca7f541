// Whether a child process has ended.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

namespace ppmr {

// Returns whether a child of this process has ended. Does not reap the child. Threads: any.
inline bool has_ended(pid_t child) {
  siginfo_t info{};  // waitid(2), because waitpid(2) refuses WNOWAIT
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

}  // namespace ppmr
