// The functions of ImageTree for the keeper, which writes sealed checkpoints to a disk and brings
// them back when the daemon starts.
#include <algorithm>

#include "base/clock.h"
#include "fuse_target/store/image_tree.h"

namespace ppmr {
namespace {

// The session of checkpoints that came from the disk. The receiver never assigns it.
constexpr SessionId kRestoredSession = UINT64_MAX;

using Clock = StoredCheckpoint::Clock;

int64_t to_realtime_ns(Clock::time_point at) {
  return realtime_ns() -
         std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - at).count();
}

Clock::time_point from_realtime_ns(int64_t ns) {
  return Clock::now() - std::chrono::nanoseconds(std::max<int64_t>(0, realtime_ns() - ns));
}

}  // namespace

ImageTree::Held::~Held() {
  for (const StoredNodePointer& node : nodes) {
    if (node->is_file()) tree.release_file(*node);
  }
}

StoredNodePointer ImageTree::top_of_locked(NodeKey key) const {
  for (const auto& [name, top] : root_->children) {
    if (top->key == key) return top;
  }
  return nullptr;
}

// Lists the tree below `top`, parents first, and counts a handle of each file.
std::unique_ptr<ImageTree::Held> ImageTree::hold_locked(const StoredNodePointer& top) {
  auto held = std::make_unique<Held>(*this, top->key);
  const StoredCheckpoint& checkpoint = *top->checkpoint;
  CheckpointListing& listing = held->listing;
  listing.owner = checkpoint.owner;
  listing.source_name = checkpoint.source_name;
  listing.begun_ns = to_realtime_ns(checkpoint.begun_at);
  listing.sealed_ns = checkpoint.sealed_ns;
  listing.landed_bytes = checkpoint.landed_bytes;
  const auto add = [&](const StoredNodePointer& node, uint32_t parent) PPMR_REQUIRES(mutex_) {
    ListedNode listed{.parent = parent,
                      .name = node->name,
                      .type = node->type,
                      .attributes = node->attributes,
                      .ctime_ns = node->ctime_ns,
                      .link_target = node->link_target};
    if (node->is_file()) {
      listed.size_bytes = node->file->facts().size_bytes;
      ++node->handles;
    }
    listing.nodes.push_back(std::move(listed));
    held->nodes.push_back(node);
  };
  add(top, 0);
  for (size_t i = 0; i < held->nodes.size(); ++i) {
    const StoredNodePointer node = held->nodes[i];
    for (const auto& [name, child] : node->children) add(child, static_cast<uint32_t>(i));
  }
  return held;
}

ImageTree::KeeperWork ImageTree::next_to_keep(std::chrono::milliseconds timeout) {
  KeeperWork work;
  MutexLock lock(mutex_);
  auto deadline = Clock::now() + timeout;
  for (;;) {
    work.removed.swap(removed_kept_);
    work.stopped = waiting_stopped_;
    if (work.stopped || !work.removed.empty()) return work;
    StoredNodePointer due;
    const auto now = Clock::now();
    for (const auto& [name, top] : root_->children) {
      const StoredCheckpoint& checkpoint = *top->checkpoint;
      if (checkpoint.state() != StoredState::kSealed || checkpoint.keep != KeepState::kNo ||
          checkpoint.is_passing) {
        continue;
      }
      if (checkpoint.keep_after > now) {
        deadline = std::min(deadline, checkpoint.keep_after);
      } else if (!due || checkpoint.sealed_ns < due->checkpoint->sealed_ns) {
        due = top;
      }
    }
    if (due) {
      due->checkpoint->keep = KeepState::kWriting;
      work.to_keep = hold_locked(due);
      return work;
    }
    if (now >= deadline) return work;
    changed_.wait_for(mutex_, std::chrono::ceil<std::chrono::milliseconds>(deadline - now));
  }
}

bool ImageTree::is_to_keep(NodeKey top) const {
  MutexLock lock(mutex_);
  const StoredNodePointer node = top_of_locked(top);
  return node && !node->checkpoint->is_passing && !waiting_stopped_;
}

bool ImageTree::set_keep(NodeKey top, KeepState state, const std::string& error,
                         Clock::time_point keep_after) {
  bool is_wanted = false;
  {
    MutexLock lock(mutex_);
    const StoredNodePointer node = top_of_locked(top);
    is_wanted = node && !node->checkpoint->is_passing;
    if (node) {
      StoredCheckpoint& checkpoint = *node->checkpoint;
      checkpoint.keep = is_wanted ? state : KeepState::kNo;
      checkpoint.keep_error = error;
      checkpoint.keep_after = keep_after;
    }
  }
  changed_.notify_all();
  return is_wanted;
}

void ImageTree::keep_soon(const std::string& name) {
  {
    MutexLock lock(mutex_);
    const auto found = root_->children.find(name);
    if (found == root_->children.end()) return;
    StoredCheckpoint& checkpoint = *found->second->checkpoint;
    if (checkpoint.keep_error.empty()) checkpoint.keep_after = {};
  }
  changed_.notify_all();
}

void ImageTree::mark_passing(const std::string& name, const std::string& owner) {
  MutexLock lock(mutex_);
  const auto found = root_->children.find(name);
  if (found == root_->children.end()) return;
  StoredCheckpoint& checkpoint = *found->second->checkpoint;
  if (!owner.empty() && checkpoint.owner != owner) return;
  if (checkpoint.keep != KeepState::kKept) checkpoint.is_passing = true;
}

Result<NodeKey> ImageTree::restore(CheckpointListing listing) {
  const std::string name = listing.name();
  std::vector<StoredNodePointer> nodes;
  MutexLock lock(mutex_);
  if (root_->children.count(name) > 0) {
    return failure(EEXIST, "there is another checkpoint '" + name + "'");
  }
  const NodeKey top{kRestoredSession, last_restored_node_ + 1};
  const auto checkpoint = std::make_shared<StoredCheckpoint>(
      top, listing.source_name, listing.owner, from_realtime_ns(listing.begun_ns));
  for (ListedNode& listed : listing.nodes) {
    auto node = std::make_shared<StoredNode>();
    node->charge = storage_.memory.charge(node_memory_bytes(listed.name, listed.link_target));
    if (!node->charge) {
      return failure(ENOSPC, "the target has no memory for its names (--memory-limit)");
    }
    node->key = {kRestoredSession, ++last_restored_node_};
    node->inode = ++last_inode_;
    node->type = listed.type;
    node->checkpoint = checkpoint;
    node->attributes = listed.attributes;
    node->ctime_ns = listed.ctime_ns;
    node->name = std::move(listed.name);
    node->link_target = std::move(listed.link_target);
    if (node->is_file()) {
      node->file = std::make_shared<ImageFile>(storage_);
      node->file->restore(std::move(listed.kept), listed.size_bytes);
      ++checkpoint->files;
    }
    nodes.push_back(std::move(node));
  }
  checkpoint->nodes = nodes.size();
  checkpoint->landed_bytes = listing.landed_bytes;
  checkpoint->sealed_ns = listing.sealed_ns;
  checkpoint->keep = KeepState::kKept;
  checkpoint->advance(StoredState::kSealed);
  for (size_t i = 0; i < nodes.size(); ++i) {
    inodes_[nodes[i]->inode] = nodes[i];
    attach_locked(i == 0 ? root_ : nodes[listing.nodes[i].parent], nodes[i]);
  }
  return top;
}

bool ImageTree::is_in_use_locked(const StoredNode& top) const {
  std::vector<const StoredNode*> left = {&top};
  while (!left.empty()) {
    const StoredNode* const node = left.back();
    left.pop_back();
    if (node->handles > 0) return true;
    for (const auto& [name, child] : node->children) left.push_back(child.get());
  }
  return false;
}

bool ImageTree::is_in_use(NodeKey top) const {
  MutexLock lock(mutex_);
  const StoredNodePointer node = top_of_locked(top);
  return node && is_in_use_locked(*node);
}

Status ImageTree::remove_kept(NodeKey top) {
  std::string name;
  {
    Lock lock(*this);
    const StoredNodePointer node = top_of_locked(top);
    if (!node) return failure(ENOENT, "it was removed meanwhile");
    if (is_in_use_locked(*node)) return failure(EBUSY, "it is being read");
    name = node->name;
    unlink_tree_locked(node);
  }
  top_removed_(name);
  changed_.notify_all();
  return {};
}

}  // namespace ppmr
