// Names and attributes, as a source tells them. Every call checks what it was told first: an id of
// another session, a name that would escape, a parent that is no directory. What cannot be done
// fails the checkpoint, because its source goes on as if it had been done.
#include "fuse_target/store/image_tree.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

Status check_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.size() > wire::kNameMaxBytes ||
      name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
    return failure(EINVAL, "a name that cannot be one (" + std::to_string(name.size()) + " bytes)");
  }
  return {};
}

template <typename Message>
Status check_new_node(const Message& message) {
  if (auto named = check_name(message.name); !named) return named;
  using wire::NodeType;
  if (message.type != NodeType::kDirectory && message.type != NodeType::kFile &&
      message.type != NodeType::kSymlink) {
    return failure(EINVAL, "'" + message.name + "': unknown type");
  }
  const bool is_link = message.type == NodeType::kSymlink;
  if (is_link == message.link_target.empty() ||
      message.link_target.size() > wire::kLinkTargetMaxBytes ||
      message.link_target.find('\0') != std::string::npos) {
    return failure(EINVAL, "'" + message.name + "': link target out of range");
  }
  if (message.node == 0) return failure(EINVAL, "'" + message.name + "': node 0 is the root");
  return {};
}

template <typename Message>
StoredNodePointer new_node(SessionId session, const Message& message) {
  auto node = std::make_shared<StoredNode>();
  node->key = {session, message.node};
  node->type = message.type;
  node->attributes = message.attributes;
  node->attributes.mode &= 07777;
  node->name = message.name;
  node->link_target = message.link_target;
  return node;
}

}  // namespace

Status ImageTree::claim(SessionId session, const wire::Claim& message) {
  if (auto checked = check_new_node(message); !checked) return checked;
  StoredNodePointer dropped;  // let go after the lock
  {
    std::lock_guard lock(mutex_);
    auto known = session_locked(session);
    if (!known) return failure(known.error());
    if ((*known)->nodes.count(message.node) > 0) {
      return failure(EEXIST, "'" + message.name + "': its node is known already");
    }
    if (const auto taken = root_->children.find(message.name); taken != root_->children.end()) {
      dropped = taken->second;
      const StoredCheckpoint& holder = *dropped->checkpoint;
      if (!holder.failed()) {
        return failure(EEXIST, "'" + message.name + "': a checkpoint of " + holder.source_name +
                                   " has that name at the target");
      }
      unlink_tree_locked(dropped);
    }
    auto node = new_node(session, message);
    node->checkpoint = std::make_shared<StoredCheckpoint>(node->key, (*known)->source_name);
    add_locked(**known, root_, node);
  }
  changed_.notify_all();
  parking_.changed(root_.get());
  return {};
}

Status ImageTree::make(SessionId session, const wire::Make& message) {
  StoredNodePointer parent;
  std::unique_lock lock(mutex_);
  const Status made = make_locked(session, message, parent);
  lock.unlock();
  tell_failures();
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
  Session& known = sessions_.at(session);
  if (auto checked = check_new_node(message); !checked) {
    return failed_in_locked(checkpoint, checked.error());
  }
  if (known.nodes.count(message.node) > 0) {
    return failed_in_locked(checkpoint, {EEXIST, name + ": its node is known already"});
  }
  if (parent->children.count(message.name) > 0) {
    return failed_in_locked(checkpoint, {EEXIST, name + ": exists"});
  }
  if (!parent->linked) {
    return failed_in_locked(checkpoint, {ENOENT, name + ": its directory was removed"});
  }
  auto node = new_node(session, message);
  node->checkpoint = checkpoint;
  add_locked(known, parent, node);
  return {};
}

Status ImageTree::remove(SessionId session, const wire::Remove& message) {
  StoredNodePointer parent = root_;
  StoredNodePointer node;
  std::unique_lock lock(mutex_);
  const Status removed = unlink_named_locked(session, message, parent, node);
  lock.unlock();
  tell_failures();
  changed_.notify_all();
  if (node) {  // who waits for something in a directory that is gone need not
    parking_.changed(node.get());
    parking_.changed(parent.get());
  }
  return removed;
}

Status ImageTree::unlink_named_locked(SessionId session, const wire::Remove& message,
                                      StoredNodePointer& parent, StoredNodePointer& node) {
  if (message.parent != 0) {
    auto known = node_locked(session, message.parent);
    if (!known) return failure(known.error());
    parent = *known;
  }
  const auto found = parent->children.find(message.name);
  if (found == parent->children.end() || found->second->key.session != session) {
    return failed_in_locked(parent->checkpoint,
                            {ENOENT, "remove of a name that is not there, or another source's"});
  }
  const StoredNodePointer there = found->second;
  if (there->checkpoint->state() == StoredState::kSealed) {
    return failure(EROFS, "remove '" + message.name + "': the checkpoint is sealed");
  }
  if (!there->children.empty()) {
    return failed_in_locked(there->checkpoint,
                            {ENOTEMPTY, "remove '" + message.name + "': not empty"});
  }
  node = there;
  unlink_locked(node);
  if (!node->is_file()) drop_key_locked(node);  // a file lives on until Forget
  return {};
}

Status ImageTree::rename(SessionId session, const wire::Rename& message) {
  StoredNodePointer node;
  StoredNodePointer new_parent;
  std::unique_lock lock(mutex_);
  const Status renamed = rename_locked(session, message, node, new_parent);
  bool completed = false;
  if (renamed) {
    completed =
        closes_checkpoint_locked(*node) && node->checkpoint->advance(StoredState::kComplete);
  } else if (node && message.request == 0) {
    // The source waits for an answer only at the top; elsewhere it goes on as if it were done.
    (void)failed_in_locked(node->checkpoint, renamed.error());
  }
  lock.unlock();
  tell_failures();
  changed_.notify_all();
  if (completed) state_changed(*node->checkpoint);
  if (renamed) parking_.changed(new_parent.get());
  return renamed;
}

Status ImageTree::rename_locked(SessionId session, const wire::Rename& message,
                                StoredNodePointer& node, StoredNodePointer& new_parent) {
  const auto parent_of = [&](uint64_t id) {
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
    return failure(ENOENT, "rename '" + message.name + "': not there");
  }
  node = found->second;
  if (auto named = check_name(message.new_name); !named) return named;
  if (!node->checkpoint->takes_changes())
    return failure(EROFS, "rename '" + message.name + "': not open");
  if (parent->checkpoint != new_parent->checkpoint) {
    return failure(EXDEV, "rename '" + message.name + "': to another checkpoint");
  }
  for (auto above = new_parent; above; above = above->parent.lock()) {
    if (above == node) return failure(EINVAL, "rename '" + message.name + "': into itself");
  }
  const auto present = new_parent->children.find(message.new_name);
  if (present != new_parent->children.end() && present->second != node) {
    const StoredNodePointer replaced = present->second;
    const bool own = replaced->key.session == session || replaced->checkpoint->failed();
    if (!own) return failure(EEXIST, "'" + message.new_name + "': another source's");
    if (!replaced->children.empty()) {
      if (!replaced->checkpoint->failed() || new_parent != root_) {
        return failure(ENOTEMPTY, "'" + message.new_name + "': not empty");
      }
      unlink_tree_locked(replaced);
    } else {
      unlink_locked(replaced);
      // A file lives on until Forget, which does not come for what is sealed.
      const bool sealed = replaced->checkpoint->state() == StoredState::kSealed;
      if (!replaced->is_file() || sealed) drop_key_locked(replaced);
    }
  }
  detach_locked(node);
  node->name = message.new_name;
  attach_locked(new_parent, node);
  return {};
}

Status ImageTree::set_attributes(SessionId session, const wire::SetAttributes& message) {
  std::lock_guard lock(mutex_);
  auto node = changeable_locked(session, message.node);
  if (!node) return failure(node.error());
  (*node)->attributes = message.attributes;
  (*node)->attributes.mode &= 07777;
  (*node)->ctime_ns = std::max((*node)->ctime_ns, message.attributes.mtime_ns);
  return {};
}

Status ImageTree::forget(SessionId session, const wire::Forget& message) {
  std::lock_guard lock(mutex_);
  auto node = node_locked(session, message.node);
  if (!node) return failure(node.error());
  if ((*node)->linked) return failure(EINVAL, "forget '" + (*node)->name + "': it is still there");
  drop_key_locked(StoredNodePointer(*node));
  return {};
}

}  // namespace ppmr
