// Removes the checkpoints that a killed program has left of a migration that is over: a supervisor
// in the target's store, or a coordinator in the source's mount. Each program records first that
// the migration is over, and then removes the checkpoints. (A hook also records it for a dead
// coordinator.) If the program dies in between, no step of the protocol is left that would remove
// them. Only the source can remove checkpoints that it has not finished.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "migration/records/record_store.h"

namespace ppmr {

// Returns the records, by name, to which none of the checkpoints can belong: the name of a
// checkpoint contains the beginning of the migration's ID.
std::set<std::string> unrelated_records(const std::vector<std::string>& records,
                                        const std::vector<std::string>& checkpoints);

// Removes the checkpoints of trees whose migration is over and whose supervisor (at the source:
// coordinator) is dead. At the target, leaves the checkpoints of lost trees, which a person may
// still need. Reads only the records of checkpoints that the mount has, usually none. Ignores
// failures, because a later call tries again.
void remove_abandoned_checkpoints(const RecordStore& store, MigrationRole role,
                                  const std::string& mountpoint);

}  // namespace ppmr
