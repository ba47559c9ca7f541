// Chooses the memory that processes need first if they run at the target before all of their memory
// has arrived. The bytes that they touch at once are in small ranges (stacks, variables of
// libraries, pieces of the heap), not in large buffers.
#pragma once

#include <vector>

#include "processes/memory/page_index.h"

namespace ppmr {

// Chooses ranges of less than 4 MiB, 32 MiB in total. A link of 10 Gb/s transfers this in 30 ms,
// while CRIU still restores. The smallest ranges come first, so that one large range does not
// displace many small ones. Memory that processes share counts once. Returns the ranges by their
// place in the file, without addresses, and joins neighbouring ranges. Returns at most 1,000
// ranges.
std::vector<PageRange> small_ranges(const PageIndex& index);

}  // namespace ppmr
