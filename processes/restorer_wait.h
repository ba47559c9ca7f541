// Whether a restored process already runs its own code. During a restore the process executes
// CRIU's restorer, which waits for CRIU in futex(2) before its last steps. If CRIU dies, the
// process waits forever; its own code has not run, so it can be killed and restored again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "processes/process_identity.h"

namespace ppmr {

// Returns the address (program counter) at which the process waits for CRIU, after waiting up to
// 100 ms for it to get there. Returns 0 if it does something else or has ended.
uint64_t await_in_restorer(pid_t pid);

enum class RestoredTasks {
  kWaiting,       // no task has run its own code
  kRunning,       // all tasks that still exist have left the restorer
  kUndetermined,  // some tasks wait in the restorer, others run: leave all as they are
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
