#include "fuse_source/source_tree.h"

#include <unistd.h>

#include <ctime>

namespace ppmr {

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

SourceTree::SourceTree() : root_(std::make_shared<SourceNode>()) {
  root_->id = kSourceRoot;
  root_->attributes.mode = 0755;
  root_->attributes.uid = ::geteuid();
  root_->attributes.gid = ::getegid();
  root_->attributes.mtime_ns = root_->attributes.atime_ns = root_->ctime_ns = now_ns();
  nodes_[kSourceRoot] = root_;
}

SourceNodePointer SourceTree::find(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : found->second;
}

SourceNodePointer SourceTree::child(const SourceNodePointer& parent, const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = parent->children.find(name);
  return found == parent->children.end() ? nullptr : found->second;
}

SourceNodePointer SourceTree::add(const SourceNodePointer& parent, const std::string& name,
                                  SourceNodePointer node) {
  std::lock_guard lock(mutex_);
  node->name = name;
  attach_locked(parent, node);
  nodes_[node->id] = node;
  return node;
}

// Under the name that it has.
void SourceTree::attach_locked(const SourceNodePointer& parent, const SourceNodePointer& node) {
  node->parent = parent;
  parent->children[node->name] = node;
  if (node->type == wire::NodeType::kDirectory) ++parent->subdirectories;
  parent->attributes.mtime_ns = parent->ctime_ns = now_ns();
}

void SourceTree::detach_locked(const SourceNodePointer& node) {
  const auto parent = node->parent.lock();
  if (!parent) return;
  parent->children.erase(node->name);
  if (node->type == wire::NodeType::kDirectory) --parent->subdirectories;
  parent->attributes.mtime_ns = parent->ctime_ns = now_ns();
}

void SourceTree::unlink(const SourceNodePointer& node) {
  std::lock_guard lock(mutex_);
  detach_locked(node);
  node->linked = false;
  node->parent.reset();
  drop_if_unused_locked(node);
}

void SourceTree::move(const SourceNodePointer& node, const SourceNodePointer& new_parent,
                      const std::string& new_name) {
  std::lock_guard lock(mutex_);
  detach_locked(node);
  node->name = new_name;
  attach_locked(new_parent, node);
  node->ctime_ns = now_ns();
}

void SourceTree::forget(uint64_t id, uint64_t lookups) {
  std::lock_guard lock(mutex_);
  auto found = nodes_.find(id);
  if (found == nodes_.end() || id == kSourceRoot) return;
  const SourceNodePointer node = found->second;
  node->lookup_count -= std::min(node->lookup_count, lookups);
  drop_if_unused_locked(node);
}

void SourceTree::count_lookup(const SourceNodePointer& node) {
  std::lock_guard lock(mutex_);
  ++node->lookup_count;
}

void SourceTree::drop_if_unused_locked(const SourceNodePointer& node) {
  if (!node->linked && node->lookup_count == 0) nodes_.erase(node->id);
}

struct stat SourceTree::attributes(const SourceNodePointer& node) {
  std::lock_guard lock(mutex_);
  struct stat result {};
  result.st_ino = node->id;
  result.st_uid = node->attributes.uid;
  result.st_gid = node->attributes.gid;
  result.st_blksize = 1 << 20;
  auto set_time = [](timespec& time, int64_t ns) {
    time.tv_sec = ns / 1'000'000'000;
    time.tv_nsec = ns % 1'000'000'000;
    if (time.tv_nsec < 0) {
      time.tv_nsec += 1'000'000'000;
      --time.tv_sec;
    }
  };
  set_time(result.st_atim, node->attributes.atime_ns);
  set_time(result.st_mtim, node->attributes.mtime_ns);
  set_time(result.st_ctim, node->ctime_ns);
  switch (node->type) {
    case wire::NodeType::kDirectory:
      result.st_mode = S_IFDIR | node->attributes.mode;
      result.st_nlink = 2 + node->subdirectories;
      break;
    case wire::NodeType::kFile:
      result.st_mode = S_IFREG | node->attributes.mode;
      result.st_nlink = node->linked ? 1 : 0;
      result.st_size = static_cast<off_t>(node->writer->size_bytes());
      result.st_blocks = (result.st_size + 511) / 512;
      break;
    case wire::NodeType::kSymlink:
      result.st_mode = S_IFLNK | 0777;
      result.st_nlink = 1;
      result.st_size = static_cast<off_t>(node->link_target.size());
      break;
  }
  return result;
}

uint64_t SourceTree::next_id() {
  std::lock_guard lock(mutex_);
  return ++last_id_;
}

std::vector<SourceNodePointer> SourceTree::nodes_of(const SourceCheckpoint& checkpoint) {
  std::lock_guard lock(mutex_);
  std::vector<SourceNodePointer> nodes;
  auto top = nodes_.find(checkpoint.top_node);
  if (top == nodes_.end() || !top->second->linked) return nodes;
  nodes.push_back(top->second);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const SourceNodePointer node = nodes[i];
    for (auto& [name, child] : node->children) nodes.push_back(child);
  }
  return nodes;
}

}  // namespace ppmr
