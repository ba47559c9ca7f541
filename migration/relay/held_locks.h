// Locks of open file descriptions (flock(2), F_OFD_SETLK) in a move. The tree holds them at the
// source until it dies there. On shared storage the target can take them only then: after the
// decision, before the tree runs. CRIU would ask for them before the vote, without an end.
//
//   before the vote   the target takes what is free. A lock that another program at the target has
//                     aborts the move; one of a file that both nodes share is left to the source
//   after it          the source's tasks are dead, and the target takes what it has left
//
// In between, another program can take such a lock. Then the tree does not run without it: the
// supervisor restores it again, and waits for the lock. Locks of processes (F_SETLK) are left to
// CRIU, because only their process can take them.
#pragma once

#include <chrono>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/process_identity.h"

namespace ppmr {

// One lock, as /proc/PID/fdinfo shows it: "lock:\t1: FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF".
// Returns false if the line is no lock of an open file description. Pure.
bool parse_lock(const std::string& line, carried::FileLock& lock);

// Adds the locks of these tasks to the state, which has a process for each task, in their order.
// Errors: ESRCH for a task that has ended; EACCES.
Status read_locks(const std::vector<ProcessIdentity>& tasks, carried::State& state);

bool carries_locks(const carried::State& state);

enum class LockTurn {
  kBeforeVote,     // leaves locks of shared files to the source
  kAfterDecision,  // waits for them
};

// Takes the locks for the restored tasks, in whose open file descriptions they are then. Errors:
// EBUSY with the file, if another program has the lock; after the decision, if it still has it when
// `patience` is over.
Status take_locks(const carried::State& state, const std::vector<ProcessIdentity>& tasks,
                  LockTurn turn, std::chrono::milliseconds patience);

}  // namespace ppmr
