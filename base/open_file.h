// Opens files of the operator: keys, certificates, the audit file.
#pragma once

#include <fcntl.h>

#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Opens a file, in this process or through another process that may open it.
using OpenFile = std::function<Result<UniqueFd>(const std::string& path)>;

// Uses O_NONBLOCK, because otherwise opening a FIFO blocks.
inline Result<UniqueFd> open_to_read(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_failure("open", path);
  return file;
}

// Creates a missing file with mode 0600. Errors: ELOOP for a symbolic link.
inline Result<UniqueFd> open_to_append(const std::string& path) {
  UniqueFd file(::open(path.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file) return system_failure("open to append", path);
  return file;
}

}  // namespace ppmr
