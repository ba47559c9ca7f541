// What CRIU and ppmr do with a tree that already stands still, besides the memory that rounds copy.
#pragma once

#include <sys/types.h>

#include "migration/source/live_rounds.h"

namespace ppmr {

// Counts it for a tree that runs, in milliseconds. A tree that has ended has none.
FrozenWork frozen_work_of(pid_t root);

}  // namespace ppmr
