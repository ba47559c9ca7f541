// The migration that a user names by its ID or the first digits of it.
#pragma once

#include <string>
#include <vector>

#include "daemon/command_line/command_error.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Returns the whole ID. Errors: kUsage if `digits` cannot be an ID, and if no migration, or more
// than one, has an ID that begins with them.
CommandResult<std::string> choose_id(const std::vector<OwnershipRecord>& records,
                                     const std::string& digits, const std::string& directory);
// Returns this node's record of the migration whose ID begins with `digits`. If this node is both
// source and target, returns the record of the preferred role. Errors: as choose_id(); kFailure for
// errors of the file system.
CommandResult<OwnershipRecord> find_migration(const RecordStore& store, const std::string& digits,
                                              MigrationRole preferred = MigrationRole::kSource);

}  // namespace ppmr
