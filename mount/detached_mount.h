// Creates mounts that are in no directory. The kernel removes them when the process ends.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Creates a mount that ends when its last file is closed. Requires Linux 5.2 and root. Errors: the
// errors of the file system, with the kernel's explanation.
Result<UniqueFd> detached_mount(const char* type,
                                const std::vector<std::pair<const char*, std::string>>& options);

// Returns a path that any process can open while this process has the file open.
std::string path_of_descriptor(const UniqueFd& file);

}  // namespace ppmr
