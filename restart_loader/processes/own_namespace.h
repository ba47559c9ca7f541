// A pid namespace for a copy of processes that run elsewhere: the copy finds its old pids free, and
// can be told from the original.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// Runs `body` in a child that is process 1 of a pid namespace of its own, with a /proc to match in
// a mount namespace of its own. It begins when `started`, here, has been told the child's pid and
// has returned no error; from then on it no longer depends on the caller. When `body` has returned
// 0, the child lets go of the mount at `mountpoint` (it must not keep it busy) and stays as long as
// there are processes in the namespace, reaping them; with it they would all be killed.
//
// Gives what `body` returned, as soon as it has. Errors: of `started`; the namespaces could not be
// made; the child was killed (ECHILD).
Result<int> run_in_own_pid_namespace(const std::string& mountpoint,
                                     const std::function<Status(pid_t)>& started,
                                     const std::function<int()>& body);

}  // namespace ppmr
