// Which ppmr mounts there are, and which of them a path lies in, read from /proc/self/mountinfo.
// Looking at a mount through the file system could wait for its daemon; this cannot.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

struct MountEntry {
  std::string mountpoint;
  std::string root;    // what of the file system is mounted: "/", or a directory that was bound
  std::string type;    // "fuse.ppmr" for ours
  std::string source;  // for ours: the daemon's control socket
  bool is_ppmr() const { return type == "fuse.ppmr"; }
};

// The mounts one can reach: of several on one mount point the last. proc(5) describes the format.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

Result<std::vector<MountEntry>> read_mounts();       // all
Result<std::vector<MountEntry>> read_ppmr_mounts();  // ours

struct MountedPath {
  MountEntry mount;
  std::string remainder;  // inside of the mount, without slashes around it: "", "ck1", "ck1/a.img"
};

// The ppmr mount that `path` lies in. Symbolic links are followed as far as the mount point; what
// is behind it is not looked at, it need not exist. Errors: ENOENT, ELOOP and others for the part
// before the mount; ENODEV when the path is in no ppmr mount.
Result<MountedPath> find_mount(const std::string& path);
Result<MountedPath> find_mount(const std::string& path, const std::vector<MountEntry>& mounts);

}  // namespace ppmr
