// Landlock makes the kernel deny this process and its descendants access to files, TCP ports and
// other processes, even if their user has this access (landlock(7), Linux 5.13).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct LandlockRules {
  // Directories or files, including everything below them. Paths that do not exist are skipped.
  std::vector<std::string> readable;
  // Existing files only: the process cannot create or remove files.
  std::vector<std::string> writable;
  bool may_connect = false;  // whether it may connect to TCP ports (restricted from Linux 6.7 on)
};

// Restricts the calling thread and the threads that it starts later. The restriction is permanent.
// Denies every access to files that `rules` does not allow. From Linux 6.7 on, also denies binding
// TCP ports, and connecting to them unless `may_connect`. From Linux 6.12 on, also denies signals
// to other processes, and abstract Unix sockets of other processes. Open files and sockets stay
// usable, and the process can connect to Unix sockets that have a path. Requires no_new_privs.
// Returns the version of the kernel's interface. Errors: ENOSYS and EOPNOTSUPP if the kernel has no
// Landlock; other errors of the system calls.
Result<int> restrict_with_landlock(const LandlockRules& rules);

}  // namespace ppmr
