// Makes the names in a directory durable.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// After this call, renames, new names and removals in the directory survive a power loss. Errors:
// those of open(2) and fsync(2).
inline Status sync_directory(const std::string& path) {
  const UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || fsync(directory.get()) != 0) return system_failure("sync", path);
  return {};
}

}  // namespace ppmr
