// The file of a migration's picture, which `ppmr timeline` writes if its output is a terminal.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Writes the picture of a migration into the directory, and returns its path. Replaces an older
// picture of the same migration, and follows no link. Errors: those of the file system.
Result<std::string> write_picture(const std::string& directory, const std::string& id,
                                  const std::string& svg);

}  // namespace ppmr
