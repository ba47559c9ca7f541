// What processes need first that run at the target before all of their memory is there: what they
// touch at once is in small ranges (stacks, variables of libraries, pieces of the heap), not in
// large buffers.
#pragma once

#include <vector>

#include "processes/memory/page_index.h"

namespace ppmr {

// Ranges of less than 4 MiB, the smallest ones first in the choice, so that one larger range too
// many does not displace many; 32 MiB in all, which 10 Gb/s take in 30 ms: that is while CRIU still
// restores. Memory that processes share counts once. Returned by their place in the file, and those
// that follow on each other as one range, without their addresses; at most 1,000.
std::vector<PageRange> small_ranges(const PageIndex& index);

}  // namespace ppmr
