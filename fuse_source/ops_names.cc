// lookup, forget, mkdir, mknod, create, symlink, readlink, unlink, rmdir, rename; and what is
// refused.
#include "fuse_source/operations.h"

namespace ppmr::source_operations_detail {
namespace {

wire::Attributes new_attributes(fuse_req_t request, mode_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  wire::Attributes attributes;
  attributes.mode = mode & 07777;
  attributes.uid = caller->uid;
  attributes.gid = caller->gid;
  attributes.atime_ns = attributes.mtime_ns = now_ns();
  return attributes;
}

void lookup(fuse_req_t request, fuse_ino_t parent_inode, const char* name) {
  const SourceNodePointer parent = node_of(request, parent_inode);
  if (!parent) return;
  if (std::string_view(name).size() > wire::kNameMaxBytes) {
    fuse_reply_err(request, ENAMETOOLONG);
  } else if (const SourceNodePointer node = mount_of(request).tree().child(parent, name)) {
    reply_entry(request, node);
  } else {
    fuse_reply_err(request, ENOENT);
  }
}

void forget(fuse_req_t request, fuse_ino_t inode, uint64_t lookups) {
  mount_of(request).tree().forget(inode, lookups);
  fuse_reply_none(request);
}

void make(fuse_req_t request, fuse_ino_t parent, const char* name, wire::NodeType type, mode_t mode,
          const char* link_target) {
  auto node =
      mount_of(request).make(parent, name, type, new_attributes(request, mode), link_target);
  if (node) {
    reply_entry(request, *node);
  } else {
    reply_error(request, node.error());
  }
}

void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  make(request, parent, name, wire::NodeType::kDirectory, mode, "");
}

void symlink(fuse_req_t request, const char* link_target, fuse_ino_t parent, const char* name) {
  make(request, parent, name, wire::NodeType::kSymlink, 0777, link_target);
}

void mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t) {
  if (!S_ISREG(mode)) {
    fuse_reply_err(request, EPERM);  // devices, FIFOs and sockets do not travel
    return;
  }
  SourceMount& mount = mount_of(request);
  auto node = mount.make(parent, name, wire::NodeType::kFile, new_attributes(request, mode), "");
  if (!node) return reply_error(request, node.error());
  // Made without being opened: complete as it is.
  if (auto status = mount.opened(*node, /*for_writing=*/true); !status) {
    return reply_error(request, status.error());
  }
  mount.released(*node, /*for_writing=*/true);
  reply_entry(request, *node);
}

void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode,
            fuse_file_info* file) {
  SourceMount& mount = mount_of(request);
  auto node = mount.make(parent, name, wire::NodeType::kFile, new_attributes(request, mode), "");
  if (!node) return reply_error(request, node.error());
  if (auto status = mount.opened(*node, /*for_writing=*/true); !status) {
    return reply_error(request, status.error());
  }
  file->fh = 1;  // counts as a writer, see ops_files.cc
  file->direct_io = 1;
  const fuse_entry_param entry = entry_of(mount, *node);
  if (fuse_reply_create(request, &entry, file) != 0) {
    mount.tree().forget((*node)->id, 1);
    mount.released(*node, /*for_writing=*/true);
  }
}

void readlink(fuse_req_t request, fuse_ino_t inode) {
  const SourceNodePointer node = node_of(request, inode);
  if (node) fuse_reply_readlink(request, node->link_target.c_str());
}

void unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  reply_status(request, mount_of(request).remove(parent, name, /*directory=*/false));
}

void rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  reply_status(request, mount_of(request).remove(parent, name, /*directory=*/true));
}

void rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned int flags) {
  reply_status(request, mount_of(request).rename(parent, name, new_parent, new_name, flags));
}

// A second name for a file would have to be kept equal at the target; no checkpoint tool asks.
void link(fuse_req_t request, fuse_ino_t, fuse_ino_t, const char*) {
  fuse_reply_err(request, EPERM);
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = lookup;
  operations.forget = forget;
  operations.mkdir = mkdir;
  operations.symlink = symlink;
  operations.mknod = mknod;
  operations.create = create;
  operations.readlink = readlink;
  operations.unlink = unlink;
  operations.rmdir = rmdir;
  operations.rename = rename;
  operations.link = link;
}

}  // namespace ppmr::source_operations_detail
