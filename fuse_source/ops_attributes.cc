// The operations getattr and setattr.
#include "fuse_source/operations.h"

namespace ppmr::source_operations_detail {
namespace {

Status getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  reply_attributes(request, mount_of(request).tree().view(*node), validity_of(**node));
  return {};
}

Status setattr(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int to_set,
               fuse_file_info*) {
  const auto found = node_of(request, inode);
  if (!found) return failure(found.error());
  const SourceNodePointer& node = *found;
  SourceMount& mount = mount_of(request);
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
    if (node->type != wire::NodeType::kFile) return failure(EISDIR, "truncate: not a file");
    const auto truncated =
        mount.truncate(node, static_cast<uint64_t>(wanted->st_size), interruption_of(request));
    if (!truncated) return truncated;
  }
  wire::Attributes attributes = mount.tree().view(node).attributes;
  if ((to_set & FUSE_SET_ATTR_MODE) != 0) attributes.mode = wanted->st_mode & 07777;
  if ((to_set & FUSE_SET_ATTR_UID) != 0) attributes.uid = wanted->st_uid;
  if ((to_set & FUSE_SET_ATTR_GID) != 0) attributes.gid = wanted->st_gid;
  if ((to_set & FUSE_SET_ATTR_ATIME) != 0) attributes.atime_ns = to_ns(wanted->st_atim);
  if ((to_set & FUSE_SET_ATTR_MTIME) != 0) attributes.mtime_ns = to_ns(wanted->st_mtim);
  if ((to_set & FUSE_SET_ATTR_ATIME_NOW) != 0) attributes.atime_ns = now_ns();
  if ((to_set & FUSE_SET_ATTR_MTIME_NOW) != 0) attributes.mtime_ns = now_ns();
  if ((to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_CTIME)) != 0) {
    if (auto set = mount.set_attributes(node, attributes); !set) return set;
  }
  reply_attributes(request, mount.tree().view(node), validity_of(*node));
  return {};
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = Guarded<getattr>::call;
  operations.setattr = Guarded<setattr>::call;
}

}  // namespace ppmr::source_operations_detail
