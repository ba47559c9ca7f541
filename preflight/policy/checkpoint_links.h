// Symbolic links in a checkpoint, whose source chooses where they lead.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// CRIU reads images as root, and follows links. It makes one itself: `parent` of a dump after
// rounds of pre-copy, which leads to the directory of the round before: "../NAME". Errors: ELOOP
// for any other link; of the file system.
Status refuse_links(const std::string& checkpoint);

}  // namespace ppmr
