// The operations lookup and readlink, and the only changes that the target mount allows: unlink and
// rmdir.
#include <string>

#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

// Replies to a look-up if it can, and returns whether it replied. In a failed checkpoint the reply
// for a missing name is an I/O error, not ENOENT: the name may have been in flight, so the file may
// exist at the source.
bool try_lookup(fuse_req_t request, const StoredNodePointer& directory, const std::string& name,
                bool may_wait) {
  TargetFrontEnd& target = target_of(request);
  // The state is read before the look-up. In the reverse order, a name could arrive and the
  // checkpoint be sealed in between, and the reply would be a wrong ENOENT.
  const StoredCheckpoint* checkpoint = directory->checkpoint.get();
  const StoredState state = checkpoint == nullptr ? StoredState::kSealed : checkpoint->state();
  if (const auto node = target.tree.look_up(directory, name, /*keep=*/true)) {
    // Determined before the view: if the checkpoint is sealed in between, an older size must not
    // count as valid.
    const Validity validity = validity_of(*node);
    reply_entry(request, target.tree.view(*node), validity);
    return true;
  }
  if (state == StoredState::kFailed) {
    fuse_reply_err(request, EIO);
    return true;
  }
  if (may_wait && state == StoredState::kOpen && target.tree.view(*directory).linked) return false;
  fuse_reply_err(request, ENOENT);
  return true;
}

Status lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  auto directory = directory_of(request, parent);
  if (!directory) return failure(directory.error());
  const std::string wanted = name;
  if (wanted.size() > wire::kNameMaxBytes) {
    return failure(ENAMETOOLONG, "look up a name: the name is too long");
  }
  const bool may_wait = target_of(request).wait_for_files && parent != kRootInode;
  if (try_lookup(request, *directory, wanted, may_wait)) return {};
  park(request, directory->get(), *directory, [request, directory = *directory, wanted] {
    return try_lookup(request, directory, wanted, /*may_wait=*/true);
  });
  return {};
}

Status readlink(fuse_req_t request, fuse_ino_t inode) {
  auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if ((*node)->type != wire::NodeType::kSymlink) {
    return failure(EINVAL, "inode " + std::to_string(inode) + ": not a symbolic link");
  }
  fuse_reply_readlink(request, (*node)->link_target.c_str());
  return {};
}

// Removes an entry. Fails while the source can still write the checkpoint. Notifies the source when
// a top-level entry is removed. The removal of a kept checkpoint is on the disk before the reply,
// which another thread sends.
Status remove(fuse_req_t request, fuse_ino_t parent, const char* name, bool directory_wanted) {
  auto directory = directory_of(request, parent);
  if (!directory) return failure(directory.error());
  TargetFrontEnd& target = target_of(request);
  auto removed = target.tree.remove_entry(*directory, name, directory_wanted);
  if (!removed) return failure(removed.error());
  if (!*removed) return reply_done(request);
  target.upstream.notify_removed(**removed);
  if (target.keeper == nullptr) return reply_done(request);
  target.keeper->removed(**removed, [request](const Status& done) {
    fuse_reply_err(request, done ? 0 : done.error().errno_value);
  });
  return {};
}

Status unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return remove(request, parent, name, /*directory_wanted=*/false);
}

Status rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return remove(request, parent, name, /*directory_wanted=*/true);
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = Guarded<lookup>::call;
  operations.readlink = Guarded<readlink>::call;
  operations.unlink = Guarded<unlink>::call;
  operations.rmdir = Guarded<rmdir>::call;
}

}  // namespace ppmr::target_operations_detail
