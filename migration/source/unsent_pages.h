// Which pages of a frozen tree rounds of pre-copy have sent, and which the page reader is still to
// send. CRIU alone knows: it resets the kernel's marks of written pages in each round and in the
// last dump, and writes to pagemap-PID.img which pages are in a parent and which it leaves out.
#pragma once

#include <string>

#include "base/result.h"
#include "processes/memory/page_index.h"

namespace ppmr {

struct SplitIndex {
  PageIndex unsent;  // a page index of what the last dump has left out: with places of its own
  PageIndex sent;    // what the rounds have, with places of its own. CRIU may have more there
};

// `index`: of the frozen tree. `images`: of its last dump. Pages that CRIU has written itself are
// in neither. Errors: of the file system; EPROTO for images that CRIU has not written.
Result<SplitIndex> split_index(const PageIndex& index, const std::string& images);

}  // namespace ppmr
