// Changes of names: this file applies them to the tree and sends them to the target in the same
// order. Creating a top-level entry begins a checkpoint: the call waits until the target grants the
// name.
#include <fcntl.h>
#include <linux/fs.h>

#include "fuse_source/source_mount.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

uint64_t wire_id(const SourceNodePointer& node) { return node->id == kSourceRoot ? 0 : node->id; }

// FUSE checks the characters of a name, but not its length.
Status check_name(const std::string& name) {
  if (name.size() > wire::kNameMaxBytes)
    return failure(ENAMETOOLONG, "create or rename '" + name + "': the name is too long");
  return {};
}

}  // namespace

Result<SourceNodePointer> SourceMount::directory(uint64_t id) {
  SourceNodePointer node = tree_.find(id);
  if (!node) return failure(ESTALE, "find directory " + std::to_string(id) + ": it was removed");
  if (node->type != wire::NodeType::kDirectory)
    return failure(ENOTDIR, "find directory " + std::to_string(id) + ": it is not a directory");
  MutexLock lock(tree_.mutex());
  if (!node->linked)
    return failure(ENOENT, "find directory " + std::to_string(id) + ": it was removed");
  return node;
}

tl::unexpected<Error> SourceMount::sealed_failure() {
  return failure(EROFS, "change a checkpoint: it is sealed");
}

Status SourceMount::check_writable(const SourceCheckpoint& checkpoint) {
  {
    MutexLock lock(tree_.mutex());
    if (checkpoint.state != CheckpointState::kOpen) return sealed_failure();
  }
  return checkpoint.status();
}

Result<SourceNodePointer> SourceMount::make(uint64_t parent_id, const std::string& name,
                                            wire::NodeType type, const wire::Attributes& attributes,
                                            const std::string& link_target) {
  if (auto status = check_name(name); !status) return failure(status.error());
  if (link_target.size() > wire::kLinkTargetMaxBytes) {
    return failure(ENAMETOOLONG, "create symbolic link '" + name + "': its target is too long");
  }
  MutexLock changes(changes_);
  auto parent = directory(parent_id);
  if (!parent) return failure(parent.error());
  if (tree_.child(*parent, name))
    return failure(EEXIST, "create '" + name + "': it exists already");

  auto node = std::make_shared<SourceNode>();
  node->id = tree_.next_id();
  node->type = type;
  node->attributes = attributes;
  node->ctime_ns = now_ns();
  node->link_target = link_target;
  node->checkpoint = (*parent)->checkpoint;
  const bool begins_checkpoint = node->checkpoint == nullptr;
  if (begins_checkpoint && draining_) {
    return failure(ESHUTDOWN, "begin checkpoint '" + name +
                                  "': this mount drains (ppmr drain --resume ends that)");
  }
  if (begins_checkpoint) {
    auto outlet = sessions_->live();
    if (!outlet) return failure(outlet.error());
    node->checkpoint = std::make_shared<SourceCheckpoint>();
    node->checkpoint->top_node = node->id;
    node->checkpoint->outlet = *outlet;
  } else if (auto status = check_writable(*node->checkpoint); !status) {
    return failure(status.error());
  }
  const auto& checkpoint = *node->checkpoint;
  if (type == wire::NodeType::kFile) {
    node->writer = std::make_shared<FileWriter>(node->id, checkpoint.error, checkpoint.outlet);
  }
  Status sent;
  if (begins_checkpoint) {
    wire::Claim claim;
    claim.node = node->id;
    claim.type = type;
    claim.attributes = attributes;
    claim.name = name;
    claim.link_target = link_target;
    sent = checkpoint.outlet->claim(claim);
  } else {
    wire::Make message;
    message.parent = wire_id(*parent);
    message.node = node->id;
    message.type = type;
    message.attributes = attributes;
    message.name = name;
    message.link_target = link_target;
    sent = checkpoint.outlet->send(message);
  }
  if (!sent) return failure(sent.error());
  return tree_.add(*parent, name, node);
}

Status SourceMount::remove(uint64_t parent_id, const std::string& name, bool directory_wanted) {
  MutexLock changes(changes_);
  auto parent = directory(parent_id);
  if (!parent) return failure(parent.error());
  const SourceNodePointer node = tree_.child(*parent, name);
  if (!node) return failure(ENOENT, "remove '" + name + "': it does not exist");
  const bool is_directory = node->type == wire::NodeType::kDirectory;
  if (directory_wanted && !is_directory)
    return failure(ENOTDIR, "remove '" + name + "': it is not a directory");
  if (!directory_wanted && is_directory)
    return failure(EISDIR, "remove '" + name + "': it is a directory");
  bool open = false;
  {
    MutexLock lock(tree_.mutex());
    if (!node->children.empty())
      return failure(ENOTEMPTY, "remove '" + name + "': the directory is not empty");
    // A sealed checkpoint belongs to the target: its names are removed only in this mount.
    open = node->checkpoint->state == CheckpointState::kOpen;
  }
  auto& outlet = *node->checkpoint->outlet;
  if (open && outlet.status()) {
    if (auto status = outlet.send(wire::Remove{wire_id(*parent), name}); !status) {
      spdlog::warn("remove '{}' at the target: {}", name, status.error().message);
    }
  }
  unlink(node);
  return {};
}

// When a file is unlinked and no longer open at the source, the target frees its memory. The caller
// holds changes_, so no other thread can seal the checkpoint at the same time.
void SourceMount::unlink(const SourceNodePointer& node) {
  const bool unused = tree_.unlink(node);
  if (!unused || node->type != wire::NodeType::kFile) return;
  {
    MutexLock lock(tree_.mutex());
    if (node->checkpoint->state != CheckpointState::kOpen) return;
  }
  forget_file(node);
}

Status SourceMount::rename(uint64_t parent_id, const std::string& name, uint64_t new_parent_id,
                           const std::string& new_name, unsigned int flags) {
  if ((flags & ~static_cast<unsigned int>(RENAME_NOREPLACE)) != 0) {
    return failure(EINVAL, "rename '" + name + "': only RENAME_NOREPLACE is supported");
  }
  if (auto status = check_name(new_name); !status) return status;
  MutexLock changes(changes_);
  auto parent = directory(parent_id);
  if (!parent) return failure(parent.error());
  auto new_parent = directory(new_parent_id);
  if (!new_parent) return failure(new_parent.error());
  const SourceNodePointer node = tree_.child(*parent, name);
  if (!node) return failure(ENOENT, "rename '" + name + "': it does not exist");
  const SourceNodePointer replaced = tree_.child(*new_parent, new_name);
  if (replaced == node) return {};
  if (replaced && (flags & RENAME_NOREPLACE) != 0)
    return failure(EEXIST, "rename to '" + new_name + "': it exists already");
  if (auto status = check_writable(*node->checkpoint); !status) return status;
  const bool top_level = parent_id == kSourceRoot;
  if (top_level != (new_parent_id == kSourceRoot) ||
      (!top_level && (*parent)->checkpoint != (*new_parent)->checkpoint)) {
    return failure(
        EXDEV, "rename '" + name + "' to '" + new_name + "': they belong to different checkpoints");
  }
  if (replaced) {
    const bool is_directory = node->type == wire::NodeType::kDirectory;
    const bool replaces_directory = replaced->type == wire::NodeType::kDirectory;
    if (is_directory && !replaces_directory)
      return failure(ENOTDIR, "rename to '" + new_name + "': it is not a directory");
    if (!is_directory && replaces_directory)
      return failure(EISDIR, "rename to '" + new_name + "': it is a directory");
    MutexLock lock(tree_.mutex());
    if (!replaced->children.empty())
      return failure(ENOTEMPTY, "rename to '" + new_name + "': the directory is not empty");
  }
  wire::Rename message;
  message.parent = wire_id(*parent);
  message.new_parent = wire_id(*new_parent);
  message.name = name;
  message.new_name = new_name;
  // Only the target has all top-level names, because its other sources create names, too.
  Outlet& outlet = *node->checkpoint->outlet;
  const Status renamed = top_level ? outlet.rename(message) : outlet.send(message);
  if (!renamed) return renamed;
  if (replaced) unlink(replaced);
  tree_.move(node, *new_parent, new_name);
  return {};
}

}  // namespace ppmr
