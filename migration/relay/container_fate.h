// Updates runc and the container's network port (container_port.h) before and after the decision
// about the container's processes, so that runc's records, control groups and names, and the port,
// agree with the migration's record.
#pragma once

#include "migration/records/record_store.h"

namespace ppmr {

// Runs at the source, when CRIU no longer holds the container. After a commit, removes the
// container. After an abort, resumes it and attaches its port. Idempotent. Errors: those of runc;
// then the operator has to run the failed command of runc again.
Status settle_container_at_source(const OwnershipRecord& record, const TreeRecord& tree);

// Runs at the target, before the source's dump. Detaches the container's port from its bridge, so
// that this node does not answer the container's peers yet.
Status expect_container_at_target(const TreeRecord& tree);

// Runs at the target. Removes the remains of a failed restore.
Status forget_container_at_target(const TreeRecord& tree, const std::string& work_directory);

}  // namespace ppmr
