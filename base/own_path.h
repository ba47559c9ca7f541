// The path of the program that runs. An upgrade of the package replaces the file while daemons run.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the path of the running program, for a text that another program will read: a script, a
// unit, a command line. A process that only starts itself uses /proc/self/exe, which leads to the
// running program even after its file was replaced. `link`: for tests. Errors: ESTALE if the file
// was replaced or removed since the start, so that the path does not lead to this program.
Result<std::string> own_path(const std::string& link = "/proc/self/exe");

}  // namespace ppmr
