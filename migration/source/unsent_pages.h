// Finds which pages of a frozen tree the pre-copy rounds have sent, and which pages the page reader
// must still send. Only CRIU's images have this information: CRIU resets the kernel's marks of
// written pages in each round and in the last dump, and writes to pagemap-PID.img which pages are
// in a parent and which it leaves out.
#pragma once

#include <string>

#include "base/result.h"
#include "processes/memory/page_index.h"

namespace ppmr {

struct SplitIndex {
  // A page index of the pages that the last dump has left out, with places of its own.
  PageIndex unsent;
  // The pages in the rounds, with places of its own. CRIU may have more pages there.
  PageIndex sent;
};

// Splits `index`, the page index of the frozen tree. `images`: the images of the tree's last dump.
// Pages that CRIU has written itself are in neither part. Errors: of the file system; EPROTO for
// images that CRIU has not written.
Result<SplitIndex> split_index(const PageIndex& index, const std::string& images);

}  // namespace ppmr
