#include "restart_loader/criu/shell_script.h"

#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <string_view>

#include "base/unique_fd.h"

namespace ppmr {

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Result<std::string> own_path() {
  char text[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", text, sizeof text);
  if (length <= 0 || length == sizeof text)
    return system_failure("find", "the running ppmr binary");
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

Result<std::string> write_script(const std::string& path, const std::string& text) {
  unlink(path.c_str());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700));
  if (!file) return system_failure("create", path);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return system_failure("write", path);
  }
  return path;
}

}  // namespace ppmr
