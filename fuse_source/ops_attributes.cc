// getattr, setattr, statfs, getxattr, listxattr.
#include <sys/statvfs.h>

#include "fuse_source/operations.h"
#include "mount/fuse/caller.h"

namespace ppmr::source_operations_detail {
namespace {

void reply_attributes(fuse_req_t request, const SourceNodePointer& node) {
  const struct stat attributes = mount_of(request).tree().attributes(node);
  fuse_reply_attr(request, &attributes, 0);
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  if (const SourceNodePointer node = node_of(request, inode)) reply_attributes(request, node);
}

int64_t to_ns(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

void setattr(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int to_set,
             fuse_file_info*) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  SourceMount& mount = mount_of(request);
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
    if (node->type != wire::NodeType::kFile) {
      fuse_reply_err(request, EISDIR);
      return;
    }
    const auto status = mount.truncate(node, static_cast<uint64_t>(wanted->st_size),
                                       [request] { return request_is_futile(request); });
    if (!status) return reply_error(request, status.error());
  }
  wire::Attributes attributes;
  {
    std::lock_guard lock(mount.tree().mutex());
    attributes = node->attributes;
  }
  if ((to_set & FUSE_SET_ATTR_MODE) != 0) attributes.mode = wanted->st_mode & 07777;
  if ((to_set & FUSE_SET_ATTR_UID) != 0) attributes.uid = wanted->st_uid;
  if ((to_set & FUSE_SET_ATTR_GID) != 0) attributes.gid = wanted->st_gid;
  if ((to_set & FUSE_SET_ATTR_ATIME) != 0) attributes.atime_ns = to_ns(wanted->st_atim);
  if ((to_set & FUSE_SET_ATTR_MTIME) != 0) attributes.mtime_ns = to_ns(wanted->st_mtim);
  if ((to_set & FUSE_SET_ATTR_ATIME_NOW) != 0) attributes.atime_ns = now_ns();
  if ((to_set & FUSE_SET_ATTR_MTIME_NOW) != 0) attributes.mtime_ns = now_ns();
  if ((to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_CTIME)) != 0) {
    if (auto status = mount.set_attributes(node, attributes); !status) {
      return reply_error(request, status.error());
    }
  }
  reply_attributes(request, node);
}

// The target's store, as far as it has told us.
void statfs(fuse_req_t request, fuse_ino_t) {
  const wire::Space space = mount_of(request).space();
  struct statvfs result {};
  result.f_bsize = result.f_frsize = 4096;
  result.f_blocks = space.total_bytes / result.f_frsize;
  result.f_bfree = result.f_bavail = space.free_bytes / result.f_frsize;
  result.f_namemax = wire::kNameMaxBytes;
  fuse_reply_statfs(request, &result);
}

void getxattr(fuse_req_t request, fuse_ino_t, const char*, size_t) {
  fuse_reply_err(request, ENODATA);
}

void listxattr(fuse_req_t request, fuse_ino_t, size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, 0);
  } else {
    fuse_reply_buf(request, nullptr, 0);
  }
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = getattr;
  operations.setattr = setattr;
  operations.statfs = statfs;
  operations.getxattr = getxattr;
  operations.listxattr = listxattr;
}

}  // namespace ppmr::source_operations_detail
