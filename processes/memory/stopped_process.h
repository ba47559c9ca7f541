// All threads of other processes, stopped by ptrace(2) for a moment. See stopped_thread.h.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

#include "base/result.h"
#include "processes/memory/stopped_thread.h"

namespace ppmr {

// Calls `work`, in a thread of its own, while no thread of the processes runs; threads that are
// made meanwhile are stopped as well. All but the first process may have ended. `patience`: with a
// thread that does not stop; the others stand still until then. Errors: those of `work` and of
// StoppedThread::stop().
Status with_stopped_processes(const std::vector<pid_t>& pids, const std::function<Status()>& work,
                              std::chrono::milliseconds patience = StoppedThread::kPatience);
inline Status with_stopped_process(pid_t pid, const std::function<Status()>& work) {
  return with_stopped_processes({pid}, work);
}

}  // namespace ppmr
