#include "base/own_path.h"

#include <unistd.h>

#include <climits>
#include <string_view>

namespace ppmr {

Result<std::string> own_path(const std::string& link) {
  char text[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), text, sizeof text);
  if (length < 0) return system_failure("read", link);
  if (length == sizeof text) return system_failure("read", link, ENAMETOOLONG);
  std::string path(text, static_cast<size_t>(length));
  constexpr std::string_view kDeleted = " (deleted)";  // see proc(5)
  if (path.ends_with(kDeleted) && access(path.c_str(), F_OK) != 0) {
    path.resize(path.size() - kDeleted.size());
    return failure(ESTALE, path +
                               " was replaced or removed while it was running: restart this "
                               "node's ppmr daemon, or this command");
  }
  return path;
}

}  // namespace ppmr
