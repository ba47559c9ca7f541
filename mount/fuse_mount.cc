#include "mount/fuse_mount.h"

#include <string>

namespace ppmr {

Result<std::unique_ptr<FuseMount>> FuseMount::create(
    const std::function<Result<FuseChannel>()>& mount, const fuse_lowlevel_ops& operations,
    void* userdata) {
  std::string name = "ppmr";
  char* words[] = {name.data()};
  fuse_args args = FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&args, &operations, sizeof operations, userdata);
  fuse_opt_free_args(&args);
  if (session == nullptr) {
    return failure(EINVAL, "create a FUSE session: libfuse rejects the operations");
  }
  auto channel = mount();
  if (!channel) {
    fuse_session_destroy(session);
    return failure(channel.error());
  }
  // libfuse accepts the descriptor of a mount that exists already. It then does not unmount.
  const std::string device = "/dev/fd/" + std::to_string(channel->device.release());
  if (fuse_session_mount(session, device.c_str()) != 0) {
    channel->unmount();
    fuse_session_destroy(session);
    return failure(EIO, "serve FUSE on " + device + ": libfuse rejects the descriptor");
  }
  return std::unique_ptr<FuseMount>(new FuseMount(session, std::move(channel->unmount)));
}

FuseMount::~FuseMount() {
  stop();
  fuse_session_destroy(session_);  // closes /dev/fuse: callers without a reply get ENOTCONN
}

void FuseMount::stop() {
  if (fuse_session_exited(session_) == 0) {
    unmount_();
    fuse_session_exit(session_);
  }
}

}  // namespace ppmr
