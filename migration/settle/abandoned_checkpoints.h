// Frees what a supervisor that was killed has left in the target's store. A supervisor records that
// its migration is over, and then removes the checkpoints of its tree. If it dies between the two,
// no step of the protocol is left that would remove them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "migration/records/record_store.h"

namespace ppmr {

// Of the records with these names, returns those to which none of the checkpoints can belong: the
// name of a checkpoint contains the beginning of the migration's ID.
std::set<std::string> unrelated_records(const std::vector<std::string>& records,
                                        const std::vector<std::string>& checkpoints);

// Removes the checkpoints of trees whose migration is over and whose supervisor is dead. Leaves
// those of lost trees, which a person may still want. Reads only the records of checkpoints that
// the mount has, usually none. Ignores failures, because a later call tries again.
void remove_abandoned_checkpoints(const RecordStore& store, const std::string& mountpoint);

}  // namespace ppmr
