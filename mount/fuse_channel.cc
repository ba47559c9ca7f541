#include "mount/fuse_channel.h"

#include <fcntl.h>
#include <fuse3/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/spawn.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

// More than one mount can be dead: a daemon that may not remove the mount of its predecessor mounts
// on top of it.
constexpr int kDeadMountsMax = 16;

// Detaches lazily (MNT_DETACH), because a process may have its working directory in the mount.
void detach(const std::string& mountpoint) {
  if (::umount2(mountpoint.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0 || errno != EPERM) return;
  const auto fusermount = spawn({.argv = {"fusermount3", "-u", "-q", "-z", "--", mountpoint}});
  while (fusermount && ::waitpid(*fusermount, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// A daemon that was killed, for example because memory was short, leaves its mount behind. Every
// access to that mount fails, and the next daemon needs the same mount point.
Status remove_dead_mounts(const std::string& mountpoint) {
  for (int i = 0; i < kDeadMountsMax && is_dead_mount(mountpoint); ++i) {
    const auto mounted = find_mount(mountpoint);
    if (!mounted || mounted->mount.mountpoint != mountpoint) break;
    detach(mountpoint);
  }
  if (!is_dead_mount(mountpoint)) return {};
  return failure(EBUSY, "mount on " + mountpoint +
                            ": the mount of a dead daemon is there and could not be removed; "
                            "as its owner, run `fusermount3 -u -z " +
                            mountpoint + "`");
}

Status check_not_mounted(const std::string& mountpoint) {
  const auto mounted = find_mount(mountpoint);
  if (!mounted || mounted->mount.mountpoint != mountpoint) return {};
  return failure(EBUSY, "mount on " + mountpoint +
                            ": a ppmr mount is there already: choose another mount point, or end "
                            "that mount's daemon first");
}

}  // namespace

bool is_dead_mount(const std::string& path) {
  struct statx attributes {};
  return ::statx(AT_FDCWD, path.c_str(), AT_STATX_FORCE_SYNC, STATX_TYPE, &attributes) != 0 &&
         errno == ENOTCONN;
}

Result<std::string> resolve_mountpoint(const std::string& path) {
  struct statx attributes {};
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_FORCE_SYNC, STATX_TYPE, &attributes) != 0) {
    if (errno != ENOTCONN) return system_failure("use the mount point", path);
    const auto mounted = find_mount(path);
    if (mounted && mounted->remainder.empty()) return mounted->mount.mountpoint;
    return failure(EBUSY, "use the mount point " + path +
                              ": a dead mount of another program is there; remove it with "
                              "`umount -l " +
                              path + "`");
  }
  if (!S_ISDIR(attributes.stx_mode)) return system_failure("use the mount point", path, ENOTDIR);
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return system_failure("use the mount point", path);
  std::string mountpoint = resolved;
  ::free(resolved);
  return mountpoint;
}

Result<FuseChannel> mount_fuse(const MountOptions& options) {
  auto resolved = resolve_mountpoint(options.mountpoint);
  if (!resolved) return failure(resolved.error());
  const std::string mountpoint = *resolved;
  if (auto status = remove_dead_mounts(mountpoint); !status) return failure(status.error());
  if (auto status = check_not_mounted(mountpoint); !status) return failure(status.error());

  std::string words = "nosuid,nodev,subtype=ppmr,fsname=" + options.source_label;
  // Root needs no permission check, because root may do anything. For the check, the kernel would
  // request the attributes of a directory again for each name that is created in it.
  if (options.allow_other || ::geteuid() != 0) words += ",default_permissions";
  if (options.allow_other) words += ",allow_other";
  UniqueFd device(::fuse_open_channel(mountpoint.c_str(), words.c_str()));
  if (!device) {
    return failure(EIO, "mount FUSE on " + mountpoint +
                            ": refused: check that /dev/fuse exists and that this user may mount");
  }
  return FuseChannel{std::move(device), [mountpoint] { detach(mountpoint); }};
}

}  // namespace ppmr
