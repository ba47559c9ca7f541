// Checks for filter rules of CRIU that moves have left at this node.
#pragma once

#include <vector>

#include "cli/doctor/diagnosis.h"
#include "restart_loader/criu/left_locks.h"

namespace ppmr {

// Returns a warning about rules that CRIU has left; nothing if there are none. Pure.
Diagnoses check_left_locks(const std::vector<LockedConnection>& left);

}  // namespace ppmr
