#include "restart_loader/shell_script.h"

#include <fcntl.h>
#include <unistd.h>

#include "buffer_pool/unique_fd.h"

namespace ppmr {

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
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
