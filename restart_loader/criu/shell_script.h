// Shell scripts for CRIU and runc: both can be configured only with the path of a program to start,
// not with arguments for it.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// The text as one word of a shell command.
std::string shell_quoted(const std::string& text);

// The path of the running binary. Errors: ESTALE if it was replaced or removed since its start, so
// that a script would not find it.
Result<std::string> own_path();

// Writes the script, replacing an old one, with mode 0700. Returns `path`. Errors: of the file
// system.
Result<std::string> write_script(const std::string& path, const std::string& text);

}  // namespace ppmr
