// What can be known of the process that waits for an answer.
#pragma once

#include <fuse3/fuse_lowlevel.h>
#include <sys/types.h>

#include <istream>

namespace ppmr {

// Whether thread `caller` has a fatal signal pending (or is gone, or cannot be seen from here). A
// signal that is merely to be handled must not fail a read or a write: CRIU, for one, takes a
// failed preadv as the end of the restore.
bool caller_is_dying(pid_t caller);
bool is_dying(std::istream& status);  // of a text in the form of /proc/PID/status

// Whether the request was interrupted by a signal that its caller will not survive.
bool request_is_futile(fuse_req_t request);

}  // namespace ppmr
