// The image pstree.img of CRIU: the processes of a tree.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "base/result.h"

namespace ppmr {

using Parents = std::map<pid_t, pid_t>;  // of each process, as it sees itself and its parent

// Errors: of the file system; EPROTO with the file and the fault for a file that CRIU has not
// written.
Result<Parents> read_pstree(const std::string& path);
// The same for the `bytes` of the file at `path`. Errors: EPROTO.
Result<Parents> parse_pstree(const std::string& path, std::string bytes);

}  // namespace ppmr
