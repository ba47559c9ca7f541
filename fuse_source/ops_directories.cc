// opendir, readdir, releasedir: a handle lists the names that were there when it was opened (or
// rewound), so that removing while reading skips nothing.
#include "fuse_source/operations.h"

namespace ppmr::source_operations_detail {
namespace {

struct DirectoryHandle {
  struct Entry {
    std::string name;
    uint64_t inode;
    mode_t type;
  };
  std::vector<Entry> entries;
};

DirectoryHandle* handle_of(fuse_file_info* file) {
  return reinterpret_cast<DirectoryHandle*>(file->fh);
}

mode_t type_bits(wire::NodeType type) {
  if (type == wire::NodeType::kDirectory) return S_IFDIR;
  return type == wire::NodeType::kFile ? S_IFREG : S_IFLNK;
}

void list(SourceMount& mount, const SourceNodePointer& node, DirectoryHandle& handle) {
  std::lock_guard lock(mount.tree().mutex());
  const SourceNodePointer parent = node->parent.lock();
  handle.entries.clear();
  handle.entries.push_back({".", node->id, S_IFDIR});
  handle.entries.push_back({"..", parent ? parent->id : kSourceRoot, S_IFDIR});
  for (auto& [name, child] : node->children) {
    handle.entries.push_back({name, child->id, type_bits(child->type)});
  }
}

void opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  SourceMount& mount = mount_of(request);
  {
    std::lock_guard lock(mount.tree().mutex());
    ++node->open_handles;
  }
  auto handle = std::make_unique<DirectoryHandle>();
  file->fh = reinterpret_cast<uint64_t>(handle.get());
  if (fuse_reply_open(request, file) == 0) {
    handle.release();  // until releasedir
  } else {
    std::lock_guard lock(mount.tree().mutex());
    --node->open_handles;
  }
}

void readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset,
             fuse_file_info* file) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  DirectoryHandle& handle = *handle_of(file);
  if (offset == 0) list(mount_of(request), node, handle);
  std::vector<char> buffer(size);
  size_t used = 0;
  for (auto next = static_cast<size_t>(offset); next < handle.entries.size(); ++next) {
    const auto& entry = handle.entries[next];
    struct stat attributes {};
    attributes.st_ino = entry.inode;
    attributes.st_mode = entry.type;
    const size_t needed =
        fuse_add_direntry(request, buffer.data() + used, size - used, entry.name.c_str(),
                          &attributes, static_cast<off_t>(next + 1));
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, buffer.data(), used);
}

void releasedir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  delete handle_of(file);
  SourceMount& mount = mount_of(request);
  if (const SourceNodePointer node = mount.tree().find(inode)) {
    std::lock_guard lock(mount.tree().mutex());
    --node->open_handles;
  }
  fuse_reply_err(request, 0);
}

}  // namespace

void add_directory_operations(fuse_lowlevel_ops& operations) {
  operations.opendir = opendir;
  operations.readdir = readdir;
  operations.releasedir = releasedir;
}

}  // namespace ppmr::source_operations_detail
