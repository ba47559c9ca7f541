// files.img: the regular files that a tree had open or mapped when it was dumped.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Writes the image at `from` to `to` without the sizes of written files. CRIU then restores them
// whatever size they have. Errors: of the file system; EPROTO.
Status write_without_sizes(const std::string& from, const std::string& to);

}  // namespace ppmr
