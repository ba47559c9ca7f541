// The operations lookup, mkdir, mknod, create, symlink, readlink, unlink, rmdir and rename; and
// link, which is refused.
#include "fuse_source/operations.h"

namespace ppmr::source_operations_detail {
namespace {

Result<SourceNodePointer> make(fuse_req_t request, fuse_ino_t parent, const char* name,
                               wire::NodeType type, mode_t mode, const char* link_target = "") {
  const fuse_ctx* caller = fuse_req_ctx(request);
  wire::Attributes attributes;
  attributes.mode = mode & 07777;
  attributes.uid = caller->uid;
  attributes.gid = caller->gid;
  attributes.atime_ns = attributes.mtime_ns = now_ns();
  return mount_of(request).make(parent, name, type, attributes, link_target);
}

Status reply_node(fuse_req_t request, const Result<SourceNodePointer>& node) {
  if (!node) return failure(node.error());
  reply_entry(request, mount_of(request).tree().view_for_lookup(*node), validity_of(**node));
  return {};
}

Status lookup(fuse_req_t request, fuse_ino_t parent_inode, const char* name) {
  const auto parent = node_of(request, parent_inode);
  if (!parent) return failure(parent.error());
  if (std::string_view(name).size() > wire::kNameMaxBytes) {
    return failure(ENAMETOOLONG, "look up a name: the name is too long");
  }
  const SourceNodePointer node = mount_of(request).tree().child(*parent, name);
  if (!node) return failure(ENOENT, "look up a name: not found");
  return reply_node(request, node);
}

Status mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  return reply_node(request, make(request, parent, name, wire::NodeType::kDirectory, mode));
}

Status symlink(fuse_req_t request, const char* link_target, fuse_ino_t parent, const char* name) {
  return reply_node(request,
                    make(request, parent, name, wire::NodeType::kSymlink, 0777, link_target));
}

Status mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t) {
  if (!S_ISREG(mode))
    return failure(EPERM, "create a special file: ppmr does not send devices, FIFOs and sockets");
  const auto node = make(request, parent, name, wire::NodeType::kFile, mode);
  if (!node) return failure(node.error());
  // mknod does not open the file, so no FUSE_RELEASE will follow: count a writer and remove it
  // at once, which sends the close.
  SourceMount& mount = mount_of(request);
  if (auto opened = mount.opened(*node, /*for_writing=*/true, /*is_new=*/true); !opened)
    return opened;
  mount.released(*node, /*for_writing=*/true);
  return reply_node(request, node);
}

Status create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode,
              fuse_file_info* file) {
  const auto node = make(request, parent, name, wire::NodeType::kFile, mode);
  if (!node) return failure(node.error());
  SourceMount& mount = mount_of(request);
  if (auto opened = mount.opened(*node, /*for_writing=*/true, /*is_new=*/true); !opened)
    return opened;
  file->fh = 1;  // counts as a writer, see ops_files.cc
  file->direct_io = 1;
  file->noflush = (*node)->checkpoint->defers_errors;
  const fuse_entry_param entry = entry_of(mount.tree().view_for_lookup(*node), validity_of(**node));
  if (fuse_reply_create(request, &entry, file) != 0) {
    mount.forget((*node)->id, 1);
    mount.released(*node, /*for_writing=*/true);
  }
  return {};
}

Status readlink(fuse_req_t request, fuse_ino_t inode) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  fuse_reply_readlink(request, (*node)->link_target.c_str());
  return {};
}

Status unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return reply_done(request, mount_of(request).remove(parent, name, /*directory=*/false));
}

Status rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return reply_done(request, mount_of(request).remove(parent, name, /*directory=*/true));
}

Status rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
              const char* new_name, unsigned int flags) {
  return reply_done(request, mount_of(request).rename(parent, name, new_parent, new_name, flags));
}

// Hard links are refused: a file at the target has only one name, and no checkpoint tool needs
// them.
Status link(fuse_req_t, fuse_ino_t, fuse_ino_t, const char*) {
  return failure(EPERM, "create a hard link: ppmr does not support hard links");
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = Guarded<lookup>::call;
  operations.mkdir = Guarded<mkdir>::call;
  operations.symlink = Guarded<symlink>::call;
  operations.mknod = Guarded<mknod>::call;
  operations.create = Guarded<create>::call;
  operations.readlink = Guarded<readlink>::call;
  operations.unlink = Guarded<unlink>::call;
  operations.rmdir = Guarded<rmdir>::call;
  operations.rename = Guarded<rename>::call;
  operations.link = Guarded<link>::call;
}

}  // namespace ppmr::source_operations_detail
