// Runs code in a namespace of another process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/result.h"

namespace ppmr {

// Runs `work` in a namespace of a process and returns when `work` has returned. `work` runs in the
// calling thread if this thread is already in that namespace, else in a new thread. `name`: "net",
// "ipc", "uts" or "cgroup"; a single thread cannot enter the other kinds. Errors: ESRCH, EACCES,
// EPERM; after these errors `work` has not run.
Status visit_namespace(pid_t pid, const std::string& name, const std::function<void()>& work);

}  // namespace ppmr
