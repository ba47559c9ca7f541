// Frees what a program that was killed has left of a migration that is over: a supervisor in the
// target's store, a coordinator in the source's mount. Each records first that the migration is
// over, and then removes the checkpoints; the hook also does that for a dead coordinator. No step
// of the protocol is left that would remove them. What a source has not finished, only it can
// remove.
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

// Removes the checkpoints of trees whose migration is over and whose supervisor is dead; at the
// source: whose coordinator is. Leaves those of lost trees at the target, which a person may still
// want. Reads only the records of checkpoints that the mount has, usually none. Ignores failures,
// because a later call tries again.
void remove_abandoned_checkpoints(const RecordStore& store, MigrationRole role,
                                  const std::string& mountpoint);

}  // namespace ppmr
