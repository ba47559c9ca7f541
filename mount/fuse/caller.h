// The state of the process that waits for a reply: is it being killed?
#pragma once

#include <fuse3/fuse_lowlevel.h>
#include <sys/types.h>

#include <functional>
#include <istream>

namespace ppmr {

// True if thread `caller` has a fatal signal pending, is gone, or is not visible in this pid
// namespace. A signal that the caller handles must not fail its read or write: CRIU, for example,
// ends the restore when preadv fails.
bool caller_is_dying(pid_t caller);
bool is_dying(std::istream& status);  // the same for a text in the form of /proc/PID/status

// Returns a function that is true once a signal which kills the caller has interrupted `request`.
// Valid until the request is replied to.
std::function<bool()> interruption_of(fuse_req_t request);

}  // namespace ppmr
