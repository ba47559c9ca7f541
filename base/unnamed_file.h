// A file without a name: the kernel removes it when its last descriptor is closed.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

struct UnnamedFile {
  UniqueFd file;     // for reading and writing
  UniqueFd reading;  // for other processes, which may only read
};

// Creates the file in `directory`, with mode 0600. Errors: the errors of open(2). Threads: any.
Result<UnnamedFile> create_unnamed_file(const std::string& directory);

}  // namespace ppmr
