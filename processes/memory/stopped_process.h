// All threads of other processes, stopped by ptrace(2) for a moment. See stopped_thread.h.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Calls `work`, in a thread of its own, while no thread of the processes runs; threads that are
// made meanwhile are stopped as well. Errors: those of `work` and of StoppedThread::stop().
Status with_stopped_processes(const std::vector<pid_t>& pids, const std::function<Status()>& work);
inline Status with_stopped_process(pid_t pid, const std::function<Status()>& work) {
  return with_stopped_processes({pid}, work);
}

}  // namespace ppmr
