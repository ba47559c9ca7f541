#include "fuse_source/source_tree.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>

namespace ppmr {

SourceTree::SourceTree() : root_(std::make_shared<SourceNode>()) {
  root_->id = kSourceRoot;
  root_->attributes.mode = 0755;
  root_->attributes.uid = ::geteuid();
  root_->attributes.gid = ::getegid();
  root_->attributes.mtime_ns = root_->attributes.atime_ns = root_->ctime_ns = now_ns();
  nodes_[kSourceRoot] = root_;
}

SourceNodePointer SourceTree::find(uint64_t id) {
  MutexLock lock(mutex_);
  auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : found->second;
}

SourceNodePointer SourceTree::child(const SourceNodePointer& parent, const std::string& name) {
  MutexLock lock(mutex_);
  auto found = parent->children.find(name);
  return found == parent->children.end() ? nullptr : found->second;
}

SourceNodePointer SourceTree::add(const SourceNodePointer& parent, const std::string& name,
                                  SourceNodePointer node) {
  MutexLock lock(mutex_);
  node->name = name;
  attach_locked(parent, node);
  nodes_[node->id] = node;
  return node;
}

// Adds `node` to the children of `parent` under node->name.
void SourceTree::attach_locked(const SourceNodePointer& parent, const SourceNodePointer& node) {
  assert(!parent->children.contains(node->name) && "two nodes have the same name");
  node->parent = parent;
  parent->children[node->name] = node;
  if (node->type == wire::NodeType::kDirectory) ++parent->subdirectories;
  parent->attributes.mtime_ns = parent->ctime_ns = now_ns();
}

void SourceTree::detach_locked(const SourceNodePointer& node) {
  const auto parent = node->parent.lock();
  if (!parent) return;
  [[maybe_unused]] const size_t erased = parent->children.erase(node->name);
  assert(erased == 1 && "a directory does not have its child");
  assert((node->type != wire::NodeType::kDirectory || parent->subdirectories > 0) &&
         "a directory lost more subdirectories than it had");
  if (node->type == wire::NodeType::kDirectory) --parent->subdirectories;
  parent->attributes.mtime_ns = parent->ctime_ns = now_ns();
}

bool SourceTree::unlink(const SourceNodePointer& node) {
  MutexLock lock(mutex_);
  detach_locked(node);
  node->linked = false;
  node->parent.reset();
  drop_if_unused_locked(node);
  return node->open_handles == 0;
}

bool SourceTree::close_handle_locked(const SourceNodePointer& node) {
  --node->open_handles;
  drop_if_unused_locked(node);
  return !node->linked && node->open_handles == 0;
}

void SourceTree::move(const SourceNodePointer& node, const SourceNodePointer& new_parent,
                      const std::string& new_name) {
  MutexLock lock(mutex_);
  detach_locked(node);
  node->name = new_name;
  attach_locked(new_parent, node);
  node->ctime_ns = now_ns();
}

void SourceTree::forget(uint64_t id, uint64_t lookups) {
  MutexLock lock(mutex_);
  auto found = nodes_.find(id);
  if (found == nodes_.end() || id == kSourceRoot) return;
  const SourceNodePointer node = found->second;
  node->lookup_count -= std::min(node->lookup_count, lookups);
  drop_if_unused_locked(node);
}

// Checks the handles too, because the kernel may send the FUSE_FORGET of an unlinked file before
// the FUSE_RELEASE of its last handle.
void SourceTree::drop_if_unused_locked(const SourceNodePointer& node) {
  if (!node->linked && node->lookup_count == 0 && node->open_handles == 0) nodes_.erase(node->id);
}

NodeView SourceTree::view_locked(const SourceNode& node) const {
  NodeView view;
  view.inode = node.id;
  view.type = node.type;
  view.attributes = node.attributes;
  view.ctime_ns = node.ctime_ns;
  if (node.type == wire::NodeType::kFile) view.size_bytes = node.writer->size_bytes();
  view.stored_bytes = view.size_bytes;
  if (node.type == wire::NodeType::kSymlink) view.size_bytes = node.link_target.size();
  view.subdirectories = node.subdirectories;
  view.linked = node.linked;
  return view;
}

NodeView SourceTree::view(const SourceNodePointer& node) {
  MutexLock lock(mutex_);
  return view_locked(*node);
}

NodeView SourceTree::view_for_lookup(const SourceNodePointer& node) {
  MutexLock lock(mutex_);
  ++node->lookup_count;
  return view_locked(*node);
}

std::vector<DirectoryEntry> SourceTree::entries(const SourceNodePointer& directory) {
  MutexLock lock(mutex_);
  const SourceNodePointer parent = directory->parent.lock();
  std::vector<DirectoryEntry> entries;
  entries.reserve(directory->children.size() + 2);
  entries.push_back({".", directory->id, wire::NodeType::kDirectory});
  entries.push_back({"..", parent ? parent->id : kSourceRoot, wire::NodeType::kDirectory});
  for (auto& [name, child] : directory->children) entries.push_back({name, child->id, child->type});
  return entries;
}

uint64_t SourceTree::next_id() {
  MutexLock lock(mutex_);
  return ++last_id_;
}

std::vector<SourceNodePointer> SourceTree::tops() {
  MutexLock lock(mutex_);
  std::vector<SourceNodePointer> tops;
  for (auto& [name, top] : root_->children) tops.push_back(top);
  return tops;
}

SourceNodePointer SourceTree::find_top(uint64_t id) {
  const SourceNodePointer node = find(id);
  return node && node->checkpoint && node->checkpoint->top_node == id ? node : nullptr;
}

std::vector<SourceNodePointer> SourceTree::nodes_of(const SourceCheckpoint& checkpoint) {
  MutexLock lock(mutex_);
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
