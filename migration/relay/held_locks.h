// Locks of files in a move: those of open file descriptions (flock(2), F_OFD_SETLK) and those of
// processes (F_SETLK). The tree holds them at the source until it dies there. On shared storage the
// target can take them only then: after the decision, before the tree runs. CRIU would ask for them
// before the vote, without an end.
//
//   before the vote   the target takes what is free. A lock that another program at the target has
//                     aborts the move; one of a file that both nodes share is left to the source
//   after it          the source's tasks are dead, and the target takes what it has left
//
// In between, another program can take such a lock. Then the tree does not run without it: the
// supervisor restores it again, and waits for the lock.
//
// Locks of open file descriptions are taken through copies of the descriptors. A lock of a process
// can be taken by that process only: its restored thread, which waits for CRIU in the restorer,
// makes the call (processes/memory/injected_calls.h). CRIU itself traces a root that is a child of
// somebody else, a runtime or a supervisor that stays: the locks of such a tree are left to CRIU.
#pragma once

#include <chrono>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/process_identity.h"

namespace ppmr {

enum class LockOwner {
  kNone,  // the line is no lock that ppmr takes: a lease, or one that waits for another lock
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

// Leaves the locks of processes to CRIU. Errors: ENOTSUP with the file, if CRIU could not take one
// while the source has it.
Status leave_process_locks(carried::State& state);

enum class LockTurn {
  kBeforeVote,     // leaves locks of shared files to the source
  kAfterDecision,  // waits for them
};

// Takes the locks for the restored tasks. Errors: those of with_injected_calls();
// EBUSY with the file, if another program has the lock; after the decision, if it still has it when
// `patience` is over.
Status take_locks(const carried::State& state, const std::vector<ProcessIdentity>& tasks,
                  LockTurn turn, std::chrono::milliseconds patience);

}  // namespace ppmr
