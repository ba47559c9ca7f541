// A look at what a process sees and we do not.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// Runs `work` in a namespace of a process, before it returns: in a thread of its own, which ends
// there, so that nobody has to find back; in the calling thread where the namespace is ours, too.
// `name`: "net", "ipc", "uts" or "cgroup"; the others cannot be entered by a single thread.
// Errors: ESRCH, EACCES, EPERM; then `work` has not run.
Status visit_namespace(pid_t pid, const std::string& name, const std::function<void()>& work);

}  // namespace ppmr
