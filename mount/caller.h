// Checks whether a signal is killing the process that waits for a reply.
#pragma once

#include <sys/types.h>

#include <istream>

namespace ppmr {

// Returns true if thread `caller` has a fatal signal pending, has ended, or is not visible in this
// pid namespace. A signal that the caller handles must not fail its read or write: CRIU, for
// example, ends the restore when preadv fails.
bool caller_is_dying(pid_t caller);
// Returns whether this /proc/PID/status shows a pending fatal signal.
bool is_dying(std::istream& status);

}  // namespace ppmr
