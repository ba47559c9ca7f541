// Stops all threads of other processes with ptrace(2) for a moment. See stopped_thread.h.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

#include "base/result.h"
#include "processes/memory/stopped_thread.h"

namespace ppmr {

// Calls `work` in a new thread while no thread of the processes runs. Also stops threads that start
// meanwhile. All but the first process may have ended. `patience`: how long to wait for a thread
// that does not stop. The other threads stand still during this wait. Errors: those of `work` and
// of StoppedThread::stop().
Status with_stopped_processes(const std::vector<pid_t>& pids, const std::function<Status()>& work,
                              std::chrono::milliseconds patience = StoppedThread::kPatience);
inline Status with_stopped_process(pid_t pid, const std::function<Status()>& work) {
  return with_stopped_processes({pid}, work);
}

}  // namespace ppmr
