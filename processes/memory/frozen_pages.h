// Finds the pages of a frozen tree that a lazy dump of CRIU leaves out, and lays them out in a
// memory file (processes/memory): private anonymous memory that is in use, without locked memory.
//
// CRIU's own list is in its images. This one is made from /proc, without waiting for the images to
// be read back. It may have a few pages more (CRIU writes the pages under stack pointers itself).
// Before the tree runs at the target, the pager checks that it has none less.
#pragma once

#include <vector>

#include "processes/memory/page_index.h"
#include "processes/process_identity.h"

namespace ppmr {

// Lays out the memory of `tasks` in their order. Errors: of /proc, with the file; ESRCH when a task
// has ended.
Result<PageIndex> index_memory(const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
