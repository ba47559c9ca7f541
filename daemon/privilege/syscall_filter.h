// The system calls that a data daemon may make (seccomp(2)).
#pragma once

#include "base/result.h"

namespace ppmr {

// Every call that is not in the list fails with ENOSYS from now on, in this thread and in threads
// that it starts later. Threads can be started, processes and programs cannot. Requires
// no_new_privs. Errors: of libseccomp, for example EINVAL if the kernel has no seccomp filters.
Status filter_system_calls();

}  // namespace ppmr
