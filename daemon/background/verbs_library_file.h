// Where the library of movable verbs (verbs_library) is installed.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the path of the library: beside the program, or where the package installs it. Errors:
// ENOENT; the message names the places.
Result<std::string> find_verbs_library(const std::string& directory_of_ppmr);

}  // namespace ppmr
