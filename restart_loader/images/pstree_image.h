// The image pstree.img of CRIU: the processes of a tree.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Key: a process; value: its parent; both in the process's pid namespace.
using Parents = std::map<pid_t, pid_t>;

// The ids of all threads, in the tree's pid namespace. The id of a process's first thread is its
// pid.
struct TreeTasks {
  pid_t root = 0;
  std::vector<pid_t> ids;
};

// Reads the image. Errors: of the file system; EPROTO with the file and the fault for a file that
// CRIU has not written.
Result<Parents> read_pstree(const std::string& path);
// Parses `bytes`, the content of the file at `path`. Errors: EPROTO as above.
Result<Parents> parse_pstree(const std::string& path, std::string bytes);

// Reads the ids of all threads from the image. Errors: those of read_pstree(); EPROTO for an image
// without a process.
Result<TreeTasks> read_tasks(const std::string& path);

}  // namespace ppmr
