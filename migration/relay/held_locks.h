// Moves the locks that a tree holds on files: locks of open file descriptions (flock(2),
// F_OFD_SETLK) and locks of processes (F_SETLK). The tree holds them at the source until it dies
// there. On shared storage the target can take them only after that: after the decision, and before
// the tree runs. CRIU would request them before the vote, and wait for them forever.
//
//   before the vote   the target takes what is free. A lock that another program at the target has
//                     aborts the move; one of a file that both nodes share is left to the source
//   after it          the source's tasks are dead, and the target takes what it has left
//
// In between, another program can take a lock that was left to the source. The tree does not run
// without the lock: the supervisor restores it again, and waits for the lock.
//
// The hook takes locks of open file descriptions through copies of the descriptors. Only a process
// itself can take a lock of a process: its restored thread, which waits in CRIU's restorer, makes
// the call (processes/memory/injected_calls.h). If the root is a child of a runtime or of a
// supervisor that stays, CRIU itself traces it. CRIU then takes the locks of the tree's processes.
#pragma once

#include <chrono>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/process_identity.h"

namespace ppmr {

enum class LockOwner {
  kNone,  // no lock that ppmr takes: a lease, or a request that waits for a lock
  kDescription,
  kProcess,
};

// Reads a line of /proc/PID/fdinfo: "lock:\t1: FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF". Pure.
LockOwner parse_lock(const std::string& line, carried::FileLock& lock);

// Adds the locks of these tasks to the state, which has a process for each task, in their order.
// Errors: ESRCH for a task that has ended; EACCES.
Status read_locks(const std::vector<ProcessIdentity>& tasks, carried::State& state);

bool carries_locks(const carried::State& state);
bool carries_process_locks(const carried::State& state);

// Leaves the locks of processes to CRIU. Errors: ENOTSUP with the file, if CRIU could not take a
// lock while the source has it.
Status leave_process_locks(carried::State& state);

enum class LockTurn {
  kBeforeVote,     // leaves locks of shared files to the source
  kAfterDecision,  // waits for the locks
};

// Takes the locks for the restored tasks. Errors: those of with_injected_calls(); EBUSY with the
// file, if another program has the lock. After the decision, EBUSY only if that program still has
// the lock when `patience` is over.
Status take_locks(const carried::State& state, const std::vector<ProcessIdentity>& tasks,
                  LockTurn turn, std::chrono::milliseconds patience);

}  // namespace ppmr
