// Estimates the work of CRIU and ppmr on a frozen tree, besides the memory that rounds copy.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "migration/source/live_rounds.h"

namespace ppmr {

// Memory that no round can copy: it is sent while the tree stands still.
struct FrozenMemory {
  pid_t pid = 0;
  std::string name;
  std::string kind;  // "locked memory"
  uint64_t bytes = 0;
};

// Returns the FrozenMemory of the processes of a running tree. Lists a segment of System V memory
// only once. Takes milliseconds. Returns nothing for a tree that has ended.
std::vector<FrozenMemory> frozen_memory_of(pid_t root);

// Counts the work for a running tree. Takes milliseconds. Returns no work for a tree that has
// ended.
FrozenWork frozen_work_of(pid_t root);

}  // namespace ppmr
