// Updates runc after the decision about a container's processes: its records, control groups and
// names must agree with the migration's record.
#pragma once

#include "restart_loader/records/record_store.h"

namespace ppmr {

// At the source, when CRIU no longer holds the container: removes it after a commit, resumes it
// after an abort. Idempotent. Errors: those of runc; then the operator has to repeat its command.
Status settle_container_at_source(const OwnershipRecord& record, const TreeRecord& tree);

// At the target: removes the remains of a failed restore.
Status forget_container_at_target(const TreeRecord& tree, const std::string& work_directory);

}  // namespace ppmr
