// Mounts that are in no directory: nothing is left of them when the process ends.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// A mount that ends with its last file. Since Linux 5.2, for root. Errors: of the file system, with
// what the kernel says.
Result<UniqueFd> detached_mount(const char* type,
                                const std::vector<std::pair<const char*, std::string>>& options);

// For any process, as long as this one has the file open.
std::string path_of_descriptor(const UniqueFd& file);

}  // namespace ppmr
