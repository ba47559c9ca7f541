#include "fuse_target/store/image_tree.h"

#include <set>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr const char* kLastImage = "inventory.img";  // CRIU writes this image after all others

}  // namespace

ImageTree::ImageTree(const ImageStorage& storage, ParkingLot& parking, TopRemoved top_removed)
    : storage_(storage),
      parking_(parking),
      top_removed_(std::move(top_removed)),
      root_(std::make_shared<StoredNode>()) {
  root_->inode = kRootInode;
  root_->attributes.mode = 0755;
  root_->ctime_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  root_->attributes.atime_ns = root_->attributes.mtime_ns = root_->ctime_ns;
  inodes_[kRootInode] = root_;
}

ImageTree::~ImageTree() {
  Lock lock(*this);
  // Also discards open files, because libfuse does not release them when the mount ends.
  for (auto& [inode, node] : inodes_) discard_locked(*node);
  while (!root_->children.empty()) unlink_tree_locked(root_->children.begin()->second);
}

// ---- Sessions ----------------------------------------------------------------------------------

void ImageTree::session_opened(SessionId session, const std::string& source_name,
                               const std::string& owner) {
  MutexLock lock(mutex_);
  sessions_[session].source_name = source_name;
  sessions_[session].owner = owner;
}

void ImageTree::session_ended(SessionId session, const std::string& reason) {
  std::set<StoredCheckpointPointer> checkpoints;
  decltype(Session::nodes) nodes;
  {
    Lock lock(*this);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    nodes.swap(found->second.nodes);
    sessions_.erase(found);
    // Visits all nodes, also unlinked nodes, which readers may still have open.
    for (auto& [id, node] : nodes) {
      checkpoints.insert(node->checkpoint);
      if (node->linked) continue;
      node->forgotten = true;
      discard_if_unused_locked(*node);
    }
  }
  {
    WriterLock lock(files_mutex_);
    for (auto& [id, node] : nodes) files_.erase(node->key);
  }
  for (auto& checkpoint : checkpoints) fail(checkpoint, Error{EIO, reason});
}

Result<ImageTree::Session*> ImageTree::session_locked(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return failure(ESTALE, "the session has ended");
  return &found->second;
}

// ---- Nodes -------------------------------------------------------------------------------------

Result<StoredNodePointer> ImageTree::node_locked(SessionId session, uint64_t node) {
  auto owner = session_locked(session);
  if (!owner) return failure(owner.error());
  const auto found = (*owner)->nodes.find(node);
  if (found == (*owner)->nodes.end()) {
    return failure(ENOENT, "node " + std::to_string(node) + ": the target does not know this node");
  }
  return found->second;
}

Result<StoredNodePointer> ImageTree::directory_locked(SessionId session, uint64_t node) {
  auto found = changeable_locked(session, node);
  if (found && !(*found)->is_directory()) {
    const Error error{ENOTDIR, "node " + std::to_string(node) + ": not a directory"};
    (void)fail_locked((*found)->checkpoint, error);
    return failure(error);
  }
  return found;
}

// Returns the node if its checkpoint is neither sealed nor failed.
Result<StoredNodePointer> ImageTree::changeable_locked(SessionId session, uint64_t node) {
  auto found = node_locked(session, node);
  if (!found) return found;
  const auto& checkpoint = (*found)->checkpoint;
  if (checkpoint->failed()) return failure(checkpoint->error());
  if (!checkpoint->takes_changes()) return failure(EROFS, "change a checkpoint: it is sealed");
  return found;
}

std::optional<ImageTree::FileRecord> ImageTree::record(NodeKey key) const {
  ReaderLock lock(files_mutex_);
  const auto found = files_.find(key);
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

StoredNodePointer ImageTree::add_locked(Session& session, const StoredNodePointer& parent,
                                        StoredNodePointer node) {
  node->inode = ++last_inode_;
  node->ctime_ns = node->attributes.mtime_ns;
  if (node->is_file()) {
    node->file = std::make_shared<ImageFile>(storage_);
    WriterLock lock(files_mutex_);
    files_[node->key] = {node->file, node->checkpoint};
  }
  ++node->checkpoint->nodes;
  if (node->is_file()) ++node->checkpoint->files;
  session.nodes[node->key.node] = node;
  inodes_[node->inode] = node;
  attach_locked(parent, node);
  return node;
}

// Adds the node to `parent` under node->name.
void ImageTree::attach_locked(const StoredNodePointer& parent, const StoredNodePointer& node) {
  node->parent = parent;
  parent->children[node->name] = node;
  if (node->is_directory()) ++parent->subdirectories;
}

void ImageTree::detach_locked(const StoredNodePointer& node) {
  const auto parent = node->parent.lock();
  if (!parent) return;
  parent->children.erase(node->name);
  if (node->is_directory()) --parent->subdirectories;
}

// Removes the name. The node stays as long as the source, the kernel or a handle refers to it.
void ImageTree::unlink_locked(const StoredNodePointer& node) {
  if (node->is_top() && node->checkpoint->keep != KeepState::kNo) {
    removed_kept_.push_back(node->key);
  }
  detach_locked(node);
  node->parent.reset();
  node->linked = false;
  --node->checkpoint->nodes;
  if (node->is_file()) --node->checkpoint->files;
  if (node->lookups == 0) inodes_.erase(node->inode);
}

// Removes the node and its descendants from all tables. Not recursive, because a source could make
// a tree so deep that the stack overflows. Returns true when a removed file was not closed.
bool ImageTree::unlink_tree_locked(StoredNodePointer node) {
  bool unfinished = false;
  std::vector<StoredNodePointer> path = {std::move(node)};
  while (!path.empty()) {
    const StoredNodePointer last = path.back();
    if (!last->children.empty()) {
      path.push_back(last->children.begin()->second);
      continue;
    }
    unfinished = unfinished || (last->is_file() && !last->file->facts().closed);
    unlink_locked(last);
    forget_key_locked(last);
    path.pop_back();
  }
  return unfinished;
}

// Removes the source's id of an unlinked node.
void ImageTree::forget_key_locked(const StoredNodePointer& node) {
  const NodeKey key = node->key;
  {
    WriterLock lock(files_mutex_);
    files_.erase(key);
  }
  node->forgotten = true;
  discard_if_unused_locked(*node);
  if (const auto session = sessions_.find(key.session); session != sessions_.end()) {
    session->second.nodes.erase(key.node);
  }
}

void ImageTree::discard_locked(StoredNode& node) {
  if (!node.is_file()) return;
  if (auto on_disk = node.file->discard()) discarded_.push_back(std::move(on_disk));
}

// Frees the bytes of a file that the source has forgotten and no handle uses, even if the kernel
// keeps the file's inode for a long time.
void ImageTree::discard_if_unused_locked(StoredNode& node) {
  if (node.forgotten && node.handles == 0) discard_locked(node);
}

// ---- States of checkpoints ---------------------------------------------------------------------

bool ImageTree::closes_checkpoint_locked(const StoredNode& node) const {
  const auto parent = node.parent.lock();
  return node.is_file() && node.name == kLastImage && parent &&
         parent->key == node.checkpoint->top && node.file->facts().closed;
}

void ImageTree::fail(const StoredCheckpointPointer& checkpoint, const Error& error) {
  if (!checkpoint->advance(StoredState::kFailed, error)) return;
  spdlog::warn("a checkpoint of {} failed: {}", checkpoint->source_name, error.message);
  state_changed(*checkpoint);
}

// Fails the checkpoint of a source that broke the protocol, and returns the error. The caller calls
// report_failures() after it has released the lock.
Status ImageTree::fail_locked(const StoredCheckpointPointer& checkpoint, Error error) {
  if (checkpoint && checkpoint->advance(StoredState::kFailed, error)) {
    spdlog::warn("a checkpoint of {} failed: {}", checkpoint->source_name, error.message);
    just_failed_.push_back(checkpoint);
  }
  return failure(std::move(error));
}

void ImageTree::report_failures() {
  std::vector<StoredCheckpointPointer> failed;
  {
    MutexLock lock(mutex_);
    failed.swap(just_failed_);
  }
  for (auto& checkpoint : failed) state_changed(*checkpoint);
}

// Frees the memory of a failed checkpoint, because no reader can read it. Names and sizes stay, for
// `ls` and `rm -r`.
void ImageTree::discard_failed_locked(const StoredCheckpoint& checkpoint) {
  std::vector<StoredNodePointer> left;
  for (auto& [name, top] : root_->children) {
    if (top->key == checkpoint.top) left.push_back(top);
  }
  while (!left.empty()) {
    const StoredNodePointer node = std::move(left.back());
    left.pop_back();
    discard_locked(*node);
    for (auto& [name, child] : node->children) left.push_back(child);
  }
}

void ImageTree::state_changed(const StoredCheckpoint& checkpoint) {
  {
    // Locks even if there is no memory to free: otherwise wait_for() could miss the change between
    // its check and its wait.
    Lock lock(*this);
    if (checkpoint.failed()) discard_failed_locked(checkpoint);
  }
  changed_.notify_all();
  parking_.changed(&checkpoint);
}

}  // namespace ppmr
