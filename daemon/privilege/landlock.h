// Landlock: the kernel denies this process and its descendants access to files, TCP ports and other
// processes, whatever their user may do (landlock(7), Linux 5.13).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct LandlockRules {
  // Directories or files, with everything below them. Those that do not exist are skipped.
  std::vector<std::string> readable;
  std::vector<std::string> writable;  // existing files only: nothing can be created or removed
  bool may_connect = false;           // to TCP ports (restricted from Linux 6.7 on)
};

// Restricts the calling thread and threads that it starts later, for ever. Denies: every access to
// files that `rules` does not allow; from Linux 6.7 on binding TCP ports, and connecting; from
// Linux 6.12 on signals to other processes and abstract Unix sockets of others. Files and sockets
// that are open stay usable, and Unix sockets can be connected to. Requires no_new_privs.
// Returns the version of the kernel's interface. Errors: ENOSYS and EOPNOTSUPP if the kernel has no
// Landlock; others of the system calls.
Result<int> restrict_with_landlock(const LandlockRules& rules);

}  // namespace ppmr
