// getattr, statfs, getxattr, listxattr.
#include <sys/statvfs.h>

#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

void reply_attributes(fuse_req_t request, const StoredNodePointer& node) {
  const struct stat attributes = attributes_of(context_of(request).tree.view(*node));
  fuse_reply_attr(request, &attributes, 0);
}

// CRIU sizes buffers by fstat of the images it has opened, so it must not see a size that is still
// growing; `ls` may. Page images are not asked for their size, and waiting for them would mean to
// wait for all memory before the restore begins.
bool waits_for_size(const TargetMountContext& context, const StoredNode& node) {
  if (!node.is_file() || context.consume || node.file->facts().closed) return false;
  if (!context.tree.is_open(node)) return false;
  const ImageTree::Place place = context.tree.place(node);
  return place.in_directory && place.name.rfind("pages-", 0) != 0;
}

Status getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  auto found = node_of(request, inode);
  if (!found) return failure(found.error());
  const StoredNodePointer node = *found;
  const TargetMountContext& context = context_of(request);
  // What is there of a failed checkpoint is shown as it is, so that it can be removed.
  if (!waits_for_size(context, *node) || node->checkpoint->failed()) {
    reply_attributes(request, node);
    return {};
  }
  park(request, node->file.get(), node, [request, node, &context] {
    if (node->checkpoint->failed()) {
      fuse_reply_err(request, EIO);
    } else if (waits_for_size(context, *node)) {
      return false;
    } else {
      reply_attributes(request, node);
    }
    return true;
  });
  return {};
}

Status statfs(fuse_req_t request, fuse_ino_t) {
  const wire::Space space = context_of(request).tree.space();
  struct statvfs result {};
  result.f_bsize = result.f_frsize = 4096;
  result.f_blocks = space.total_bytes / result.f_frsize;
  result.f_bfree = result.f_bavail = space.free_bytes / result.f_frsize;
  result.f_namemax = wire::kNameMaxBytes;
  fuse_reply_statfs(request, &result);
  return {};
}

Status getxattr(fuse_req_t, fuse_ino_t, const char*, size_t) {
  return failure(ENODATA, "no such attribute");
}

Status listxattr(fuse_req_t request, fuse_ino_t, size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, 0);
  } else {
    fuse_reply_buf(request, nullptr, 0);
  }
  return {};
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = Answered<getattr>::call;
  operations.statfs = Answered<statfs>::call;
  operations.getxattr = Answered<getxattr>::call;
  operations.listxattr = Answered<listxattr>::call;
}

}  // namespace ppmr::target_operations_detail
