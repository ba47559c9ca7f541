// Mounts a FUSE file system without serving it. This requires only mount(2) or fusermount3, so a
// process with the right to mount can do it for another process that serves.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

struct MountOptions {
  std::string mountpoint;
  std::string source_label;  // "mount source" in /proc/self/mountinfo: the control socket
  bool allow_other = false;
};

struct FuseChannel {
  UniqueFd device;  // /dev/fuse: receives the requests of this mount
  // Detaches the mount, so no new caller finds it. Called once, by any thread.
  std::function<void()> unmount;
};

// Returns whether the daemon of the mount at `path` has died: statx(2) returns ENOTCONN. The call
// makes the kernel query the daemon (AT_STATX_FORCE_SYNC). Otherwise the kernel could answer from
// the cached attributes of a dead mount for a while, for example after df.
bool is_dead_mount(const std::string& path);

// Returns the canonical path of a directory to mount on. The dead mount of a ppmr daemon may cover
// the directory. Changes nothing. Errors: ENOENT, ENOTDIR, EBUSY (a dead mount of another file
// system).
Result<std::string> resolve_mountpoint(const std::string& path);

// Mounts with type fuse.ppmr, nosuid and nodev. First removes the dead mounts that ppmr daemons
// have left there. The kernel checks permissions, except where root alone has access. Callers wait
// until the mount is served. Errors: those of resolve_mountpoint; EBUSY (a ppmr mount is there
// already); those of mount(2).
Result<FuseChannel> mount_fuse(const MountOptions& options);

}  // namespace ppmr
