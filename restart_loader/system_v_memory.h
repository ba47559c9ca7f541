// The System V shared memory that a process can attach.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

// The identifiers in a text like /proc/sysvipc/shm.
std::vector<uint64_t> parse_system_v_segments(std::string_view text);
// Those of a process's IPC namespace, whoever has them attached. Errors: ESRCH, EACCES, EPERM.
Result<std::vector<uint64_t>> read_system_v_segments(pid_t pid);

}  // namespace ppmr
