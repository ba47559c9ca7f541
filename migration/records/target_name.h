// Decides whether a node that has no record of a migration is the target of that migration.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

struct TargetName {
  std::string name;             // its host name, as it claims
  std::string node_id;          // its read_node_id(), as it claims; empty: unknown
  std::string state_directory;  // of its records; empty: unknown
};

// Checks that the node `answering`, which has no record of migration `id`, is the target of that
// migration. `known`: what the source's record says about the target. Another target can be mounted
// at the source's mountpoint now, or the target's daemon can have another state directory. Then the
// target's record may still exist, and with it the only copy of the processes. A host name can
// change, so the node IDs decide if both are known. Succeeds if the source knows nothing about its
// target. Errors: EXDEV; the message says what to do.
Status check_denial(const TargetName& known, const TargetName& answering, const std::string& id);

}  // namespace ppmr
