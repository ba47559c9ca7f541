// Everything that would change a checkpoint: its bytes and names are its source's.
#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

template <typename... Arguments>
void refuse(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, EROFS);
}

}  // namespace

void add_refused_operations(fuse_lowlevel_ops& operations) {
  operations.setattr = refuse;
  operations.mknod = refuse;
  operations.mkdir = refuse;
  operations.symlink = refuse;
  operations.rename = refuse;
  operations.link = refuse;
  operations.create = refuse;
  operations.write = refuse;
  operations.fallocate = refuse;
  operations.setxattr = refuse;
  operations.removexattr = refuse;
}

}  // namespace ppmr::target_operations_detail
