// What CRIU and ppmr do with a tree that already stands still, besides the memory that rounds copy.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "migration/source/live_rounds.h"

namespace ppmr {

// Memory that is sent while the tree stands still, whatever it writes.
struct FrozenMemory {
  pid_t pid = 0;
  std::string name;
  std::string kind;  // "locked memory"
  uint64_t bytes = 0;
};

// Returns that of the processes of a tree that runs; a segment of System V memory once. Looks for
// milliseconds. A tree that has ended has none.
std::vector<FrozenMemory> frozen_memory_of(pid_t root);

// Counts the work for a tree that runs, in milliseconds. A tree that has ended has none.
FrozenWork frozen_work_of(pid_t root);

}  // namespace ppmr
