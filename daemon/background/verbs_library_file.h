// Where the library of movable verbs (verbs_library) is installed.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// The library: beside the program, or where the package installs it. Errors: ENOENT, which names
// the places.
Result<std::string> find_verbs_library(const std::string& directory_of_ppmr);

}  // namespace ppmr
