#include "restart_loader/criu/shell_script.h"

#include <unistd.h>

#include "base/whole_file.h"

namespace ppmr {

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Result<std::string> write_script(const std::string& path, const std::string& text) {
  unlink(path.c_str());
  const Status written = write_whole_file(path, text, O_EXCL, 0700);
  return written ? Result<std::string>(path) : failure(written.error());
}

}  // namespace ppmr
