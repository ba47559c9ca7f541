// A mounted FUSE session: mounted when created, unmounted when destroyed.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include <functional>
#include <memory>

#include "base/result.h"
#include "mount/fuse_channel.h"

namespace ppmr {

// Threads: created and destroyed by one thread; stop() by any.
class FuseMount {
 public:
  // Calls `mount` once. Operations get `userdata` from fuse_req_userdata(). Errors: those of
  // `mount`.
  static Result<std::unique_ptr<FuseMount>> create(
      const std::function<Result<FuseChannel>()>& mount, const fuse_lowlevel_ops& operations,
      void* userdata);
  // Unmounts. Callers that have no reply yet get ENOTCONN.
  ~FuseMount();

  fuse_session* session() const { return session_; }
  // Detaches the mount, so no new caller finds it, and ends the request loops. Idempotent.
  void stop();

 private:
  FuseMount(fuse_session* session, std::function<void()> unmount)
      : session_(session), unmount_(std::move(unmount)) {}

  fuse_session* const session_;
  const std::function<void()> unmount_;
};

}  // namespace ppmr
