// What CRIU calls at its stages is one path, so it is given scripts of a few lines.
#pragma once

#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// One word for a shell, whatever is in it.
std::string shell_quoted(const std::string& text);

// The path of the running binary. Errors: it was replaced or removed since it was started, so a
// script would find another one or none.
Result<std::string> own_path();

// Makes it anew, for this user alone, and returns `path`. Errors: of the file system.
Result<std::string> write_script(const std::string& path, const std::string& text);

}  // namespace ppmr
