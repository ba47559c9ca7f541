// Finds the pages of a frozen tree that a lazy dump of CRIU leaves out, and lays them out in a
// memory file (processes/memory). These pages are the private anonymous memory that is in use,
// without locked memory.
//
// CRIU's own list is in its images. This list comes from /proc, so ppmr need not wait until it can
// read the images back. It may have a few more pages than CRIU's list (CRIU writes the pages under
// stack pointers itself). Before the tree runs at the target, the pager checks that no page of
// CRIU's list is missing.
#pragma once

#include <vector>

#include "processes/memory/page_index.h"
#include "processes/process_identity.h"

namespace ppmr {

// Lays out the memory of `tasks` in their order. Errors: those of reading /proc, with the name of
// the file; ESRCH when a task has ended.
Result<PageIndex> index_memory(const std::vector<ProcessIdentity>& tasks);

}  // namespace ppmr
