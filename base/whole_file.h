// Reads a file of any kind to its end. Does not need the size of the file, which may be unknown for
// a file in a ppmr mount.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Errors: the errors of the file system; the message names the file.
inline Result<std::string> read_whole_file(const std::string& path) {
  constexpr size_t kReadBytes = size_t{1} << 20;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kReadBytes);
    const ssize_t n = read(file.get(), bytes.data() + before, kReadBytes);
    if (n < 0 && errno != EINTR) return system_failure("read", path);
    bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return bytes;
  }
}

}  // namespace ppmr
