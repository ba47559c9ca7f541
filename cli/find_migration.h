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
// The same with the records of a node. Errors: also kFailure, those of the file system.
CommandResult<std::string> find_migration(const RecordStore& store, const std::string& digits);

}  // namespace ppmr
