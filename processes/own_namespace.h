// A pid namespace for a copy of processes that keep running elsewhere: the copy gets the pids of
// the original, which are free in the new namespace.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/result.h"

namespace ppmr {

// Runs `body` in a child that is process 1 of a new pid namespace. Child and caller get a new mount
// namespace, whose /proc shows the new pid namespace. `started` runs in the caller with the child's
// pid; `body` begins when `started` has succeeded. From then on the child does not depend on the
// caller. If `body` returns 0, the child detaches its copy of the mount at `mountpoint` (so that
// the mount can be unmounted outside) and reaps processes until the pid namespace is empty. If the
// child is killed, the kernel kills all processes in the pid namespace.
//
// Returns the result of `body` as soon as `body` has returned. Errors: those of `started`; those of
// creating the namespaces; ECHILD if the child was killed.
Result<int> run_in_own_pid_namespace(const std::string& mountpoint,
                                     const std::function<Status(pid_t)>& started,
                                     const std::function<int()>& body);

}  // namespace ppmr
