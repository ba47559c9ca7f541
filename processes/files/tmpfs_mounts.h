// The file systems in memory (tmpfs) that only the processes of a tree see: /tmp, /dev/shm and
// others of a container. They end with its mount namespace, so their files must move.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// A line of /proc/PID/mountinfo that shows the whole of a tmpfs.
struct TmpfsLine {
  uint64_t mount_id = 0;
  dev_t device = 0;
  std::string mountpoint;
  std::string options;  // options of the file system: "rw,size=65536k,mode=755"
};

// Skips lines that it cannot parse, and mounts of a subdirectory.
std::vector<TmpfsLine> parse_tmpfs_lines(std::string_view mountinfo);

struct PrivateTmpfs {
  // The root directory, in a detached mount that has no other mounts in it. So ppmr reaches its
  // files even if the tree has mounted something over them, and no path leads out of the tmpfs.
  UniqueFd root;
  dev_t device = 0;
  std::string options;
  std::string mountpoint;  // in a mount namespace of the tree; for errors
};

// Opens each tmpfs of the mount namespaces of a tree that this process's namespace does not have.
// Returns an empty list if the tree has another user namespace, and before Linux 5.12. Leaves out a
// tmpfs that another mount hides. Starts a thread for each namespace. Errors: ESRCH, EACCES.
Result<std::vector<PrivateTmpfs>> open_private_tmpfs(pid_t root);

}  // namespace ppmr
