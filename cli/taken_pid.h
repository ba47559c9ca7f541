// Detects a move that was aborted because, between its checks and its restore, the target gave a
// needed pid to another process.
#pragma once

#include <sys/types.h>

#include <optional>

#include "migration/source/migration.h"

namespace ppmr {

// Returns the pid that CRIU could not give to a process of this move; nothing if the move was not
// aborted, or for another reason.
std::optional<pid_t> taken_pid(const MigrationOutcome& outcome);

}  // namespace ppmr
