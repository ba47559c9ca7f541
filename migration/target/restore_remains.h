// Cleans up after a restore that failed or whose supervisor has died. There must never be two
// copies of a tree, so this code kills restored tasks only if none of them has run its own code.
#pragma once

#include <string>

#include "base/result.h"
#include "migration/records/ownership_record.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {

// Kills a CRIU that is still at work, or waits for its end if the relay has let it continue. Then
// inspects the restored tasks. Returns false if none of the tasks had run its own code: then it has
// killed all of them, and the tree can be restored again. Returns true if the tree runs, or has run
// and ended. `work_directory`: the work directory of the restore. `end`: how its CRIU ended, if it
// has. Kills only descendants of the caller or of an earlier supervisor.
//
// Errors: EUCLEAN if some tasks run and others wait, which the operator has to resolve; those of
// inspecting and killing.
Result<bool> settle_remains(const TreeRecord& tree, const std::string& work_directory, CriuEnd end);

// Removes the checkpoints of a tree from the target's store, if they belong to the record's peer.
// Leaves the epoch of a tree that is taken over. Errors: those of the mount and its daemon, EPERM
// for the checkpoint of another peer.
Status remove_checkpoint(const OwnershipRecord& record, const TreeRecord& tree);

// Unmounts the files in memory that were put in place for a tree. A tree that runs keeps its own
// mounts of them. `record_directory`: of the target's record.
void remove_built_files(const std::string& record_directory, size_t tree);

}  // namespace ppmr
