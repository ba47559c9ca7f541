// Updates runc and the container's network port (container_port.h) before and after the decision
// about the container's processes, so that runc's records, control groups and names, and the port,
// agree with the migration's record.
#pragma once

#include <string>
#include <vector>

#include "migration/records/record_store.h"
#include "restart_loader/containers/container_port.h"

namespace ppmr {

// Runs at the source, when CRIU no longer holds the container. After a commit, removes the
// container. After an abort, resumes it and attaches its port. Idempotent. Errors: those of runc;
// then the operator has to run the failed command of runc again.
Status settle_container_at_source(const OwnershipRecord& record, const TreeRecord& tree);

// A container that runc knows on this node.
struct PresentContainer {
  std::string name;
  std::string status;  // see ContainerState
  std::string bundle;
  std::string port;  // the interface of its port; empty: it has none
};
// Checks that no container on this node uses `port`, the port of the arriving container, or has the
// name or the bundle of that container. Ignores stopped containers. The source names the bundle
// that names the port, and the source may be wrong or lie. Errors: EBUSY.
Status check_cut(const ContainerRecord& arriving, const ContainerPort& port,
                 const std::vector<PresentContainer>& present);

// Runs at the target, before the source's dump. Checks that the record's restart policy accepts the
// container, and that no container here uses its port. Then detaches the port from its bridge, so
// that this node does not answer the container's peers yet. After an abort the port stays detached:
// the container's address is at the source, and no container here uses the port. Errors: EPERM;
// EBUSY; those of runc and of the file system.
Status expect_container_at_target(const OwnershipRecord& record, const TreeRecord& tree);

// Runs at the target. Removes the remains of a failed restore.
Status forget_container_at_target(const TreeRecord& tree, const std::string& work_directory);

}  // namespace ppmr
