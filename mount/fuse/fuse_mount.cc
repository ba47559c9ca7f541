#include "mount/fuse/fuse_mount.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

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

}  // namespace

Result<std::unique_ptr<FuseMount>> FuseMount::create(const MountOptions& options,
                                                     const fuse_lowlevel_ops& operations,
                                                     void* userdata) {
  if (auto status = check_mountpoint(options.mountpoint); !status) return failure(status.error());
  char* resolved = ::realpath(options.mountpoint.c_str(), nullptr);
  if (resolved == nullptr) return system_failure("resolve the mount point", options.mountpoint);
  const std::string mountpoint = resolved;
  ::free(resolved);
  if (auto status = check_not_mounted(mountpoint); !status) return failure(status.error());

  std::vector<std::string> words = {"ppmr", "-o",
                                    "nosuid,nodev,subtype=ppmr,fsname=" + options.source_label};
  // Root may do anything. To find that out, the kernel would request the attributes of a directory
  // anew for each name that is made there.
  if (options.allow_other || ::geteuid() != 0) words.back() += ",default_permissions";
  if (options.allow_other) words.back() += ",allow_other";
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(pointers.size()), pointers.data());
  fuse_session* session = fuse_session_new(&args, &operations, sizeof operations, userdata);
  fuse_opt_free_args(&args);
  if (session == nullptr)
    return failure(EINVAL,
                   "create a FUSE session for " + mountpoint + ": libfuse rejects the options");
  if (fuse_session_mount(session, mountpoint.c_str()) != 0) {
    fuse_session_destroy(session);
    return failure(EIO, "mount FUSE on " + mountpoint +
                            ": failed (does /dev/fuse exist, is mounting permitted?)");
  }
  return std::unique_ptr<FuseMount>(new FuseMount(session, mountpoint));
}

FuseMount::~FuseMount() {
  stop();
  fuse_session_unmount(session_);
  fuse_session_destroy(session_);  // closes /dev/fuse: callers without a reply get ENOTCONN
}

void FuseMount::stop() {
  // Unmounts lazily, because a process may have its working directory in the mount.
  if (fuse_session_exited(session_) == 0) {
    ::umount2(mountpoint_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    fuse_session_exit(session_);
  }
}

}  // namespace ppmr
