// The system calls that a data daemon may make (seccomp(2)).
#pragma once

#include "base/result.h"

namespace ppmr {

// Makes every call fail with ENOSYS that is not in the list, in this thread and in threads that it
// starts later. The process can start threads, but not processes or programs. Requires
// no_new_privs. Errors: those of libseccomp, for example EINVAL if the kernel has no seccomp
// filters.
Status filter_system_calls();

}  // namespace ppmr
