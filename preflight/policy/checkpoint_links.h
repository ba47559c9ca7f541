// Symbolic links in a checkpoint. The source of the checkpoint chooses where they lead.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Refuses a checkpoint with symbolic links, because CRIU reads images as root and follows links.
// Accepts the one link that CRIU makes itself: `parent` in a dump after `criu pre-dump`. It leads
// to the directory of the round before: "../NAME". Errors: ELOOP for any other link; of the file
// system.
Status refuse_links(const std::string& checkpoint);

}  // namespace ppmr
