// Whether a restored process runs its own code yet. While CRIU restores it, it executes CRIU's
// restorer, whose last steps wait in a system call for CRIU's word. When CRIU dies, such a process
// waits for ever; its own code has not run, so it can be killed and restored again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "restart_loader/processes/process_identity.h"

namespace ppmr {

// Where the process waits for CRIU (an address), after giving it a moment to get there; 0 when it
// does something else or is gone.
uint64_t await_in_restorer(pid_t pid);

enum class RestoredTasks {
  kWaiting,       // none has run its own code
  kRunning,       // all that are left have left the restorer
  kUndetermined,  // some of each: it must not be touched
  kGone,          // there is none of them, or they are about to end
};
// The tasks of a restored tree whose CRIU has ended. `waiting_at[i]` is the address at which
// `tasks[i]` waits in CRIU's restorer (await_in_restorer), 0 or missing if unknown.
struct RestoredTree {
  std::vector<ProcessIdentity> tasks;
  std::vector<uint64_t> waiting_at;
};
RestoredTasks look_at_restored(const RestoredTree& tree);

}  // namespace ppmr
