// Shell scripts for CRIU and runc. Both programs can be configured only with the path of a program
// to start, not with arguments for that program.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the text as one word of a shell command.
std::string shell_quoted(const std::string& text);

// Writes the script to `path` with mode 0700, and replaces an old one. Returns `path`. Errors: of
// the file system.
Result<std::string> write_script(const std::string& path, const std::string& text);

}  // namespace ppmr
