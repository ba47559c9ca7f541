// Finds out whether a restored process already runs its own code. During a restore the process
// executes CRIU's restorer, which waits for CRIU in futex(2) before its last steps. If CRIU dies,
// the process waits forever. Its own code has not run then, so ppmr can kill it and restore it
// again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "processes/process_identity.h"

namespace ppmr {

// Waits up to 100 ms until the process waits for CRIU, and returns the address (program counter) at
// which it waits. Returns 0 if the process does something else or has ended.
uint64_t await_in_restorer(pid_t pid);

enum class RestoredTasks {
  kWaiting,       // no task has executed its own code
  kRunning,       // all tasks that still exist have left the restorer
  kUndetermined,  // some tasks wait in the restorer, others run: leave all tasks as they are
  kGone,          // no task exists, or all are about to end
};
// The tasks of a restored tree. `waiting_at[i]` is the result of await_in_restorer() for
// `tasks[i]`; 0 or missing if unknown.
struct RestoredTree {
  std::vector<ProcessIdentity> tasks;
  std::vector<uint64_t> waiting_at;
};
RestoredTasks look_at_restored(const RestoredTree& tree);

}  // namespace ppmr
