// The options of CRIU that `ppmr migrate ... -- CRIU-OPTIONS` passes on, to the dump at the source
// and to the restore at the target: a fixed list, which both nodes check. The target runs CRIU as
// root on behalf of a peer, so no option on the list names a program to run, a file to write, or
// another root directory.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Errors: EINVAL for the first option that is not on the list or lacks its value.
Status check_passed_options(const std::vector<std::string>& options);

// All options that are passed on, for --help and the documentation.
std::string passed_options_text();

}  // namespace ppmr
