// The Sink's calls about names and attributes. Each call first validates the message: it refuses
// the id of another session, a name that would leave its directory, and a parent that is not a
// directory. If the target cannot do an operation, the checkpoint fails, because the source assumes
// that the operation was done.
#include "fuse_target/store/image_tree.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

Status check_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.size() > wire::kNameMaxBytes ||
      name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
    return failure(EINVAL, "create or rename a file: its name of " + std::to_string(name.size()) +
                               " bytes is invalid");
  }
  return {};
}

template <typename Message>
Status check_new_node(const Message& message) {
  if (auto named = check_name(message.name); !named) return named;
  using wire::NodeType;
  if (message.type != NodeType::kDirectory && message.type != NodeType::kFile &&
      message.type != NodeType::kSymlink) {
    return failure(EINVAL, "create '" + message.name + "': unknown type of file");
  }
  const bool is_link = message.type == NodeType::kSymlink;
  if (is_link == message.link_target.empty() ||
      message.link_target.size() > wire::kLinkTargetMaxBytes ||
      message.link_target.find('\0') != std::string::npos) {
    return failure(EINVAL, "create '" + message.name + "': the target of the link is invalid");
  }
  if (message.node == 0)
    return failure(EINVAL, "create '" + message.name + "': its node id is 0, the id of the root");
  return {};
}

// Returns null when the memory limit is reached.
template <typename Message>
StoredNodePointer new_node(SessionId session, const Message& message, StoreMemory& memory) {
  auto node = std::make_shared<StoredNode>();
  node->charge = memory.charge(node_memory_bytes(message.name, message.link_target));
  if (!node->charge) return nullptr;
  node->key = {session, message.node};
  node->type = message.type;
  node->attributes = message.attributes;
  node->attributes.mode &= 07777;
  node->name = message.name;
  node->link_target = message.link_target;
  return node;
}

Error no_memory_for(const std::string& name) {
  return {ENOSPC, "'" + name + "': the target has no memory for another name (--memory-limit)"};
}

}  // namespace

Status ImageTree::claim(SessionId session, const wire::Claim& message) {
  if (refuses_claims_) {
    return failure(
        ESHUTDOWN,
        "the target drains and accepts no new checkpoint (ppmr drain --resume ends that)");
  }
  if (auto checked = check_new_node(message); !checked) return checked;
  StoredNodePointer replaced;  // declared before the lock, so destroyed after the unlock
  {
    Lock lock(*this);
    auto owner = session_locked(session);
    if (!owner) return failure(owner.error());
    if ((*owner)->nodes.count(message.node) > 0) {
      return failure(EEXIST, "create '" + message.name + "': its node id is in use");
    }
    if (const auto found = root_->children.find(message.name); found != root_->children.end()) {
      replaced = found->second;
      const StoredCheckpoint& holder = *replaced->checkpoint;
      if (!holder.is_replaceable_by((*owner)->owner)) {
        return failure(EEXIST, "'" + message.name + "': a checkpoint of " + holder.source_name +
                                   " has that name at the target" +
                                   (holder.failed() ? "; it has failed: remove it there" : ""));
      }
      unlink_tree_locked(replaced);
    }
    auto node = new_node(session, message, storage_.memory);
    if (!node) return failure(no_memory_for(message.name));
    node->checkpoint =
        std::make_shared<StoredCheckpoint>(node->key, (*owner)->source_name, (*owner)->owner);
    add_locked(**owner, root_, node);
  }
  changed_.notify_all();
  parking_.changed(root_.get());
  return {};
}

Status ImageTree::make(SessionId session, const wire::Make& message) {
  StoredNodePointer parent;
  Lock lock(*this);
  const Status made = make_locked(session, message, parent);
  lock.unlock();
  report_failures();
  if (parent) parking_.changed(parent.get());
  return made;
}

Status ImageTree::make_locked(SessionId session, const wire::Make& message,
                              StoredNodePointer& parent) {
  auto found = directory_locked(session, message.parent);
  if (!found) return failure(found.error());
  parent = *found;
  const auto& checkpoint = parent->checkpoint;
  const std::string name = "'" + message.name.substr(0, wire::kNameMaxBytes) + "'";
  Session& owner = sessions_.at(session);
  if (auto checked = check_new_node(message); !checked) {
    return fail_locked(checkpoint, checked.error());
  }
  if (owner.nodes.count(message.node) > 0) {
    return fail_locked(checkpoint, {EEXIST, name + ": its node id is in use"});
  }
  if (parent->children.count(message.name) > 0) {
    return fail_locked(checkpoint, {EEXIST, name + ": exists"});
  }
  auto node = new_node(session, message, storage_.memory);
  if (!node) return fail_locked(checkpoint, no_memory_for(message.name));
  node->checkpoint = checkpoint;
  add_locked(owner, parent, node);
  return {};
}

Status ImageTree::remove(SessionId session, const wire::Remove& message) {
  StoredNodePointer parent = root_;
  StoredNodePointer node;
  Lock lock(*this);
  const Status removed = unlink_named_locked(session, message, parent, node);
  lock.unlock();
  report_failures();
  changed_.notify_all();
  if (node && parent == root_) top_removed_(message.name);
  if (node) {  // retries requests that wait for a name in the removed directory
    parking_.changed(node.get());
    parking_.changed(parent.get());
  }
  return removed;
}

Status ImageTree::unlink_named_locked(SessionId session, const wire::Remove& message,
                                      StoredNodePointer& parent, StoredNodePointer& node) {
  if (message.parent != 0) {
    auto named = node_locked(session, message.parent);
    if (!named) return failure(named.error());
    parent = *named;
  }
  const auto found = parent->children.find(message.name);
  if (found == parent->children.end() || found->second->key.session != session) {
    return fail_locked(parent->checkpoint,
                       {ENOENT, "remove '" + message.name.substr(0, wire::kNameMaxBytes) +
                                    "': this source has no such file or directory"});
  }
  const StoredNodePointer there = found->second;
  if (there->checkpoint->state() == StoredState::kSealed) {
    return failure(EROFS, "remove '" + message.name + "': the checkpoint is sealed");
  }
  if (!there->children.empty()) {
    return fail_locked(there->checkpoint, {ENOTEMPTY, "remove '" + message.name + "': not empty"});
  }
  node = there;
  unlink_locked(node);
  // A file keeps its id until the source sends Forget for it: it may still be open at the source.
  if (!node->is_file()) forget_key_locked(node);
  return {};
}

Status ImageTree::rename(SessionId session, const wire::Rename& message) {
  StoredNodePointer node;
  StoredNodePointer new_parent;
  Lock lock(*this);
  const Status renamed = rename_locked(session, message, node, new_parent);
  bool completed = false;
  if (renamed) {
    completed =
        closes_checkpoint_locked(*node) && node->checkpoint->advance(StoredState::kComplete);
  }
  lock.unlock();
  report_failures();
  changed_.notify_all();
  if (completed) state_changed(*node->checkpoint);
  if (renamed) parking_.changed(new_parent.get());
  return renamed;
}

Status ImageTree::rename_locked(SessionId session, const wire::Rename& message,
                                StoredNodePointer& node, StoredNodePointer& new_parent) {
  const auto parent_of = [&](uint64_t id) PPMR_REQUIRES(mutex_) {
    return id == 0 ? Result<StoredNodePointer>(root_) : directory_locked(session, id);
  };
  const auto old_parent = parent_of(message.parent);
  if (!old_parent) return failure(old_parent.error());
  const auto wanted_parent = parent_of(message.new_parent);
  if (!wanted_parent) return failure(wanted_parent.error());
  const StoredNodePointer parent = *old_parent;
  new_parent = *wanted_parent;
  const auto found = parent->children.find(message.name);
  if (found == parent->children.end() || found->second->key.session != session) {
    return failure(ENOENT,
                   "rename '" + message.name + "': this source has no such file or directory");
  }
  node = found->second;
  if (auto named = check_name(message.new_name); !named) return named;
  if (!node->checkpoint->takes_changes())
    return failure(EROFS, "rename '" + message.name + "': the checkpoint is sealed or failed");
  if (parent->checkpoint != new_parent->checkpoint) {
    return failure(EXDEV, "rename '" + message.name + "': the new name is in another checkpoint");
  }
  for (auto above = new_parent; above; above = above->parent.lock()) {
    if (above == node)
      return failure(EINVAL,
                     "rename '" + message.name + "': the new name is inside this directory");
  }
  const auto present = new_parent->children.find(message.new_name);
  if (present != new_parent->children.end() && present->second != node) {
    const StoredNodePointer replaced = present->second;
    const StoredCheckpoint& holder = *replaced->checkpoint;
    if (replaced->key.session != session &&
        !holder.is_replaceable_by(sessions_.at(session).owner)) {
      return failure(EEXIST,
                     "rename to '" + message.new_name + "': the name belongs to another source");
    }
    if (!replaced->children.empty() && !holder.failed()) {
      return failure(ENOTEMPTY, "rename to '" + message.new_name + "': the directory is not empty");
    }
    // A replaced file keeps its id until the source sends Forget, and the source sends it only
    // while the checkpoint is open. In a sealed or failed checkpoint, forget the file at once.
    if (replaced->is_file() && holder.takes_changes()) {
      unlink_locked(replaced);
    } else {
      unlink_tree_locked(replaced);
    }
  }
  detach_locked(node);
  node->name = message.new_name;
  attach_locked(new_parent, node);
  return {};
}

Status ImageTree::set_attributes(SessionId session, const wire::SetAttributes& message) {
  MutexLock lock(mutex_);
  auto node = changeable_locked(session, message.node);
  if (!node) return failure(node.error());
  set_attributes_locked(**node, message.attributes);
  return {};
}

void ImageTree::set_attributes_locked(StoredNode& node, const wire::Attributes& attributes) {
  node.attributes = attributes;
  node.attributes.mode &= 07777;
  node.ctime_ns = std::max(node.ctime_ns, attributes.mtime_ns);
}

Status ImageTree::forget(SessionId session, const wire::Forget& message) {
  Lock lock(*this);
  auto node = node_locked(session, message.node);
  if (!node) return failure(node.error());
  if ((*node)->linked)
    return failure(EINVAL, "forget '" + (*node)->name + "': only a removed file can be forgotten");
  forget_key_locked(StoredNodePointer(*node));
  return {};
}

}  // namespace ppmr
