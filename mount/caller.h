// The state of the process that waits for a reply: is it being killed?
#pragma once

#include <sys/types.h>

#include <istream>

namespace ppmr {

// True if thread `caller` has a fatal signal pending, is gone, or is not visible in this pid
// namespace. A signal that the caller handles must not fail its read or write: CRIU, for example,
// ends the restore when preadv fails.
bool caller_is_dying(pid_t caller);
bool is_dying(std::istream& status);  // whether this /proc/PID/status shows a fatal pending signal

}  // namespace ppmr
