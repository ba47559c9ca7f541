// A mounted FUSE session: mounted when created, unmounted when destroyed.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include <memory>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

struct MountOptions {
  std::string mountpoint;
  std::string source_label;  // "mount source" in /proc/self/mountinfo: the control socket
  bool allow_other = false;
};

// Threads: created and destroyed by one thread; stop() by any.
class FuseMount {
 public:
  // Mounts as type fuse.ppmr with nosuid and nodev. The kernel checks permissions, except where
  // root alone has access. Operations get `userdata` from fuse_req_userdata(). Errors: ENOENT,
  // ENOTDIR, EBUSY (a ppmr mount is there already), those of mount(2).
  static Result<std::unique_ptr<FuseMount>> create(const MountOptions& options,
                                                   const fuse_lowlevel_ops& operations,
                                                   void* userdata);
  // Callers without a reply get ENOTCONN.
  ~FuseMount();

  fuse_session* session() const { return session_; }
  const std::string& mountpoint() const { return mountpoint_; }
  // Detaches the mount, so no new caller finds it, and ends the request loops. Idempotent.
  void stop();

 private:
  FuseMount(fuse_session* session, std::string mountpoint)
      : session_(session), mountpoint_(std::move(mountpoint)) {}

  fuse_session* const session_;
  const std::string mountpoint_;
};

}  // namespace ppmr
