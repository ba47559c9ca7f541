// The options of CRIU that `ppmr migrate ... -- CRIU-OPTIONS` passes on to the dump at the source
// and to the restore at the target. It is a fixed list, and both nodes check the options against
// it. The target runs CRIU as root on behalf of a peer, so no option on the list names a program to
// run, a file to write, or another root directory.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Checks the options. Errors: EINVAL for the first option that is not on the list or lacks its
// value.
Status check_passed_options(const std::vector<std::string>& options);

// Returns all options that ppmr passes on, for --help and the documentation.
std::string passed_options_text();

}  // namespace ppmr
