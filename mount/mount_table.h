// Finds the ppmr mounts, and the mount that contains a path. Reads /proc/self/mountinfo and does
// not access the mount, because such an access could block on the mount's daemon.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct MountEntry {
  std::string mountpoint;
  std::string root;    // "/", or for a bind mount the bound directory of the file system
  std::string type;    // "fuse.ppmr" for a ppmr mount
  std::string source;  // for a ppmr mount, the path of the daemon's control socket
  bool is_ppmr() const { return type == "fuse.ppmr"; }
};

// Returns the visible mounts: if several mounts have the same mount point, only the last of them.
// proc(5) describes the format. Skips lines that it cannot parse.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

Result<std::vector<MountEntry>> read_mounts();
Result<std::vector<MountEntry>> read_ppmr_mounts();

struct MountedPath {
  MountEntry mount;
  std::string remainder;  // path in the mount, without outer slashes: "", "ck1", "ck1/a.img"
};

// Returns the ppmr mount that contains `path`. Follows symbolic links up to the mount point. Does
// not access the rest of the path, which need not exist. Errors: ENOENT, ELOOP and others for the
// part before the mount; ENODEV when no ppmr mount contains the path.
Result<MountedPath> find_mount(const std::string& path);
Result<MountedPath> find_mount(const std::string& path, const std::vector<MountEntry>& mounts);

}  // namespace ppmr
