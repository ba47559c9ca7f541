// lookup, forget, opendir, readdir, releasedir, readlink.
#include <cstring>
#include <memory>
#include <vector>

#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

void reply_entry(fuse_req_t request, const StoredNodePointer& node) {
  ImageTree& tree = context_of(request).tree;
  fuse_entry_param entry{};
  entry.ino = node->inode;
  entry.attr = attributes_of(tree.view(*node));
  // Time-outs stay 0: names and sizes change under the kernel's feet, by other nodes' doing.
  const uint64_t inode = node->inode;
  if (fuse_reply_entry(request, &entry) != 0) tree.forget_inode(inode, 1);
}

// Answers a look-up if that can be done now. In a failed checkpoint a missing name is an error: it
// may have been on its way, and a reader would take ENOENT for "there is nothing".
bool try_lookup(fuse_req_t request, const StoredNodePointer& directory, const std::string& name,
                bool may_wait) {
  TargetMountContext& context = context_of(request);
  // Asked before the name: what arrives in between comes with a change that tries again.
  const StoredCheckpoint* checkpoint = directory->checkpoint.get();
  const StoredState state = checkpoint == nullptr ? StoredState::kSealed : checkpoint->state();
  if (const auto node = context.tree.look_up(directory, name, /*keep=*/true)) {
    reply_entry(request, node);
    return true;
  }
  if (state == StoredState::kFailed) {
    fuse_reply_err(request, EIO);
    return true;
  }
  if (may_wait && state == StoredState::kOpen && context.tree.view(*directory).linked) return false;
  fuse_reply_err(request, ENOENT);
  return true;
}

Status lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  auto directory = directory_of(request, parent);
  if (!directory) return failure(directory.error());
  const std::string wanted = name;
  if (wanted.size() > wire::kNameMaxBytes) return failure(ENAMETOOLONG, "look-up");
  const bool may_wait = context_of(request).wait_for_files && parent != kRootInode;
  if (try_lookup(request, *directory, wanted, may_wait)) return {};
  park(request, directory->get(), *directory, [request, directory = *directory, wanted] {
    return try_lookup(request, directory, wanted, /*may_wait=*/true);
  });
  return {};
}

void forget(fuse_req_t request, fuse_ino_t inode, uint64_t lookups) {
  context_of(request).tree.forget_inode(inode, lookups);
  fuse_reply_none(request);
}

void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgets) {
  for (size_t i = 0; i < count; ++i) {
    context_of(request).tree.forget_inode(forgets[i].ino, forgets[i].nlookup);
  }
  fuse_reply_none(request);
}

// ---- Directories: a handle lists what was there when it was opened -----------------------------

using Listing = std::vector<ImageTree::Entry>;

Status opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  auto directory = directory_of(request, inode);
  if (!directory) return failure(directory.error());
  auto listing = std::make_unique<Listing>(context_of(request).tree.entries(*directory));
  info->fh = reinterpret_cast<uint64_t>(listing.get());
  if (fuse_reply_open(request, info) == 0) listing.release();
  return {};
}

Status readdir(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info* info) {
  const Listing& listing = *reinterpret_cast<Listing*>(info->fh);
  std::vector<char> reply(size);
  size_t used = 0;
  for (size_t i = static_cast<size_t>(offset); i < listing.size(); ++i) {
    ImageTree::View view;
    view.inode = listing[i].inode;
    view.type = listing[i].type;
    const struct stat attributes = attributes_of(view);
    const size_t length =
        fuse_add_direntry(request, reply.data() + used, reply.size() - used,
                          listing[i].name.c_str(), &attributes, static_cast<off_t>(i + 1));
    if (length > reply.size() - used) break;
    used += length;
  }
  fuse_reply_buf(request, reply.data(), used);
  return {};
}

Status releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  delete reinterpret_cast<Listing*>(info->fh);
  fuse_reply_err(request, 0);
  return {};
}

Status readlink(fuse_req_t request, fuse_ino_t inode) {
  auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if ((*node)->type != wire::NodeType::kSymlink) return failure(EINVAL, "not a symbolic link");
  fuse_reply_readlink(request, (*node)->link_target.c_str());
  return {};
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = Answered<lookup>::call;
  operations.forget = forget;
  operations.forget_multi = forget_multi;
  operations.opendir = Answered<opendir>::call;
  operations.readdir = Answered<readdir>::call;
  operations.releasedir = Answered<releasedir>::call;
  operations.readlink = Answered<readlink>::call;
}

}  // namespace ppmr::target_operations_detail
