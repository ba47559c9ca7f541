// What runc is told when the fate of a container's processes is decided: its own records, control
// groups and names follow ours.
#pragma once

#include "restart_loader/records/record_store.h"

namespace ppmr {

// At the source, once nothing of CRIU's holds it any more: gone after a commit, going on after an
// abort. May be told again. Errors: what is left to be done by hand.
Status settle_container_at_source(const OwnershipRecord& record, const TreeRecord& tree);

// At the target: forgets what a restore that did not succeed has left of it.
Status forget_container_at_target(const TreeRecord& tree, const std::string& work_directory);

}  // namespace ppmr
