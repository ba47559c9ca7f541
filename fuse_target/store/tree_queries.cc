// The functions of ImageTree for the mount and the control socket.
#include <algorithm>

#include "fuse_target/store/image_tree.h"

namespace ppmr {

StoredNodePointer ImageTree::find(uint64_t inode) const {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(inode);
  return found == inodes_.end() ? nullptr : found->second;
}

StoredNodePointer ImageTree::look_up(const StoredNodePointer& directory, const std::string& name,
                                     bool keep) {
  MutexLock lock(mutex_);
  const auto found = directory->children.find(name);
  if (found == directory->children.end()) return nullptr;
  if (keep) ++found->second->lookups;
  return found->second;
}

void ImageTree::forget_inode(uint64_t inode, uint64_t lookups) {
  StoredNodePointer unused;  // declared before the lock, so destroyed after the unlock
  MutexLock lock(mutex_);
  const auto found = inodes_.find(inode);
  if (found == inodes_.end() || inode == kRootInode) return;
  StoredNode& node = *found->second;
  node.lookups -= std::min(node.lookups, lookups);
  if (node.lookups > 0 || node.linked) return;
  unused = std::move(found->second);
  inodes_.erase(found);
}

Status ImageTree::open_file(StoredNode& node) {
  MutexLock lock(mutex_);
  if (node.forgotten && node.handles == 0) return failure(ESTALE, "the file was removed");
  ++node.handles;
  return {};
}

void ImageTree::release_file(StoredNode& node) {
  Lock lock(*this);
  --node.handles;
  discard_if_unused_locked(node);
}

bool ImageTree::is_open(const StoredNode& node) const {
  MutexLock lock(mutex_);
  return node.handles > 0;
}

ImageTree::View ImageTree::view(const StoredNode& node) const {
  View view;
  if (node.is_file()) {
    const ImageFile::Facts facts = node.file->facts();
    view.size_bytes = facts.size_bytes;
    view.stored_bytes = facts.stored_bytes;
  }
  if (node.type == wire::NodeType::kSymlink) view.size_bytes = node.link_target.size();
  view.inode = node.inode;
  view.type = node.type;
  MutexLock lock(mutex_);
  view.attributes = node.attributes;
  view.ctime_ns = node.ctime_ns;
  view.linked = node.linked;
  view.subdirectories = node.subdirectories;
  return view;
}

ImageTree::Place ImageTree::place(const StoredNode& node) const {
  MutexLock lock(mutex_);
  return {node.name, node.checkpoint && !(node.key == node.checkpoint->top)};
}

std::vector<ImageTree::Entry> ImageTree::entries(const StoredNodePointer& directory) const {
  MutexLock lock(mutex_);
  const auto parent = directory->parent.lock();
  std::vector<Entry> entries;
  entries.reserve(directory->children.size() + 2);
  entries.push_back({".", directory->inode, directory->type});
  entries.push_back({"..", parent ? parent->inode : kRootInode, wire::NodeType::kDirectory});
  for (auto& [name, node] : directory->children) entries.push_back({name, node->inode, node->type});
  return entries;
}

// ---- Removal at the target ---------------------------------------------------------------------

Result<std::optional<NodeKey>> ImageTree::remove_entry(const StoredNodePointer& parent,
                                                       const std::string& name,
                                                       bool directory_wanted) {
  StoredNodePointer node;
  bool top = false;
  {
    Lock lock(*this);
    const auto found = parent->children.find(name);
    if (found == parent->children.end())
      return failure(ENOENT, "remove '" + name + "': there is no such file");
    node = found->second;
    if (node->checkpoint->state() == StoredState::kOpen) {
      return failure(EBUSY, "remove '" + name + "': its source is still writing the checkpoint");
    }
    if (directory_wanted && !node->is_directory())
      return failure(ENOTDIR, "remove '" + name + "': it is not a directory");
    if (!directory_wanted && node->is_directory())
      return failure(EISDIR, "remove '" + name + "': it is a directory");
    if (!node->children.empty())
      return failure(ENOTEMPTY, "remove '" + name + "': the directory is not empty");
    top = node->key == node->checkpoint->top;
    unlink_locked(node);
    forget_key_locked(node);
  }
  changed_.notify_all();
  // The source can no longer refer to the removed file, so its missing bytes cannot arrive.
  if (node->is_file() && !node->file->facts().closed) {
    fail(node->checkpoint,
         Error{EIO, "'" + name + "' was removed at the target before it was complete"});
  }
  if (!top) return std::optional<NodeKey>();
  return std::optional<NodeKey>(node->key);
}

Result<NodeKey> ImageTree::remove_checkpoint(const std::string& name, const std::string& owner) {
  StoredNodePointer top;
  bool unfinished = false;
  {
    Lock lock(*this);
    const auto found = root_->children.find(name);
    if (found == root_->children.end())
      return failure(ENOENT, "there is no checkpoint '" + name + "' at the target");
    top = found->second;
    if (!owner.empty() && top->checkpoint->owner != owner) {
      return failure(EPERM, "checkpoint '" + name + "' belongs to " + top->checkpoint->owner +
                                ", not to " + owner);
    }
    if (top->checkpoint->state() == StoredState::kOpen) {
      return failure(EBUSY, "remove '" + name + "': its source is still writing it");
    }
    unfinished = unlink_tree_locked(top);
  }
  top_removed_(name);
  changed_.notify_all();
  // If every file is complete, readers can continue. Otherwise readers of an incomplete file would
  // wait forever, so the checkpoint fails.
  if (unfinished) fail(top->checkpoint, Error{EIO, "removed at the target before it was complete"});
  return top->key;
}

// ---- Reports of checkpoints --------------------------------------------------------------------

CheckpointReport ImageTree::report_locked(const std::string& name, const StoredNode& top) const {
  const StoredCheckpoint& checkpoint = *top.checkpoint;
  CheckpointReport report;
  report.name = name;
  report.top = checkpoint.top;
  report.inode = top.inode;
  report.state = checkpoint.state();
  report.bytes = checkpoint.landed_bytes;
  report.files = checkpoint.files;
  report.age = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - checkpoint.begun_at);
  report.source_name = checkpoint.source_name;
  report.owner = checkpoint.owner;
  report.error = checkpoint.error().message;
  report.refused_seals = checkpoint.refused_seals;
  report.seal_error = checkpoint.seal_error;
  report.keep = checkpoint.keep;
  report.keep_error = checkpoint.keep_error;
  report.is_passing = checkpoint.is_passing;
  return report;
}

std::vector<CheckpointReport> ImageTree::checkpoints() const {
  MutexLock lock(mutex_);
  std::vector<CheckpointReport> reports;
  for (auto& [name, top] : root_->children) reports.push_back(report_locked(name, *top));
  return reports;
}

std::optional<CheckpointReport> ImageTree::checkpoint_locked(const std::string& name) const {
  const auto found = root_->children.find(name);
  if (found == root_->children.end()) return std::nullopt;
  return report_locked(name, *found->second);
}

std::optional<CheckpointReport> ImageTree::checkpoint(const std::string& name) const {
  MutexLock lock(mutex_);
  return checkpoint_locked(name);
}

std::optional<CheckpointReport> ImageTree::wait_for(const std::string& name,
                                                    const Condition& reached,
                                                    std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  std::optional<CheckpointReport> report;
  changed_.wait_for(mutex_, timeout, [&]() PPMR_REQUIRES(mutex_) {
    report = checkpoint_locked(name);
    return waiting_stopped_ || reached(report);
  });
  return report;
}

void ImageTree::stop_waiting() {
  MutexLock lock(mutex_);
  waiting_stopped_ = true;
  changed_.notify_all();
}

}  // namespace ppmr
