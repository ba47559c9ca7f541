// The supervisors of a migration at the target: for each tree one process `ppmr migration-restore`
// (tree_restore.h). The record contains the supervisor's pid.
#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// Starts a supervisor in its own POSIX session (setsid(2)). Its output goes to the work directory.
// Errors: those of the file system and of spawn().
Status start_supervisor(const RecordStore& store, const std::string& id, size_t tree);

// Starts a supervisor for each tree that is not complete and whose supervisor has ended. A
// supervisor ends when it gives up, when it is killed, or when the node reboots. Errors: those of
// start_supervisor().
Status ensure_supervisors(const RecordStore& store, const OwnershipRecord& record);

}  // namespace ppmr
