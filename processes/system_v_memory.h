// The System V shared memory that a process can attach.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Returns the identifiers of all segments in the IPC namespace of a process. Errors: ESRCH, EACCES,
// EPERM.
Result<std::vector<uint64_t>> read_system_v_segments(pid_t pid);

}  // namespace ppmr
