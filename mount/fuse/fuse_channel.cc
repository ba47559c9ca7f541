#include "mount/fuse/fuse_channel.h"

#include <fuse3/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "mount/daemon/spawn.h"

namespace ppmr {
namespace {

// stat(2) on the mount of a daemon that died returns ENOTCONN.
Status check_mountpoint(const std::string& mountpoint) {
  struct stat attributes {};
  if (::stat(mountpoint.c_str(), &attributes) != 0) {
    if (errno == ENOTCONN) {
      return failure(EBUSY, "mount on " + mountpoint +
                                ": the mount of a dead daemon is there; remove it with "
                                "`fusermount3 -u " +
                                mountpoint + "`");
    }
    return system_failure("mount on", mountpoint);
  }
  if (!S_ISDIR(attributes.st_mode)) return system_failure("mount on", mountpoint, ENOTDIR);
  return {};
}

Status check_not_mounted(const std::string& mountpoint) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    if (line.find(" " + mountpoint + " ") != std::string::npos &&
        line.find(" - fuse.ppmr ") != std::string::npos) {
      return failure(EBUSY, "mount on " + mountpoint + ": a ppmr mount is there already");
    }
  }
  return {};
}

// Lazily, because a process may have its working directory in the mount.
void detach(const std::string& mountpoint) {
  if (::umount2(mountpoint.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0 || errno != EPERM) return;
  const auto fusermount = spawn({.argv = {"fusermount3", "-u", "-q", "-z", "--", mountpoint}});
  while (fusermount && ::waitpid(*fusermount, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<FuseChannel> mount_fuse(const MountOptions& options) {
  if (auto status = check_mountpoint(options.mountpoint); !status) return failure(status.error());
  char* resolved = ::realpath(options.mountpoint.c_str(), nullptr);
  if (resolved == nullptr) return system_failure("resolve the mount point", options.mountpoint);
  const std::string mountpoint = resolved;
  ::free(resolved);
  if (auto status = check_not_mounted(mountpoint); !status) return failure(status.error());

  std::string words = "nosuid,nodev,subtype=ppmr,fsname=" + options.source_label;
  // Root may do anything. To find that out, the kernel would request the attributes of a directory
  // anew for each name that is made there.
  if (options.allow_other || ::geteuid() != 0) words += ",default_permissions";
  if (options.allow_other) words += ",allow_other";
  UniqueFd device(::fuse_open_channel(mountpoint.c_str(), words.c_str()));
  if (!device) {
    return failure(EIO, "mount FUSE on " + mountpoint +
                            ": failed (does /dev/fuse exist, is mounting permitted?)");
  }
  return FuseChannel{std::move(device), [mountpoint] { detach(mountpoint); }};
}

}  // namespace ppmr
