// The names and attributes of the source mount. The source is their authority: it answers look-ups
// and attributes from here, and tells the target of every change.
//
// A top-level entry is a checkpoint; every node below knows it.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fuse_source/file_writer.h"
#include "rdma_stream/session/outlet.h"

namespace ppmr {

enum class CheckpointState { kOpen, kSealing, kSealed };

// Whether it has failed is told by `error` and by the outlet's status.
struct SourceCheckpoint {
  uint64_t top_node = 0;
  std::shared_ptr<Outlet> outlet;  // the session that carries it
  std::shared_ptr<StickyError> error = std::make_shared<StickyError>();
  std::chrono::steady_clock::time_point begun_at = std::chrono::steady_clock::now();
  CheckpointState state = CheckpointState::kOpen;  // guarded by the tree's mutex
  std::atomic<bool> removed_at_target = false;

  // A value while the checkpoint is well.
  Status status() const {
    if (auto own = error->status(); !own) return own;
    return outlet->status();
  }
};

struct SourceNode {
  // Constant.
  uint64_t id = 0;  // FUSE inode number and node id on the wire
  wire::NodeType type = wire::NodeType::kDirectory;
  std::shared_ptr<SourceCheckpoint> checkpoint;  // null: the root
  std::string link_target;
  std::shared_ptr<FileWriter> writer;  // of a file

  // Guarded by the tree's mutex.
  std::string name;
  std::weak_ptr<SourceNode> parent;  // expired or null: unlinked
  bool linked = true;
  wire::Attributes attributes;
  int64_t ctime_ns = 0;
  std::map<std::string, std::shared_ptr<SourceNode>> children;
  size_t subdirectories = 0;  // of them; counting them at each stat() took longer than all else
  uint64_t lookup_count = 0;  // the kernel's references
  uint32_t open_handles = 0;
  uint32_t open_writers = 0;
  uint32_t closing_writers = 0;  // of these, whose close is under way
  uint64_t writers_so_far = 0;   // whether a close is still the last one's
};
using SourceNodePointer = std::shared_ptr<SourceNode>;

inline constexpr uint64_t kSourceRoot = 1;  // FUSE_ROOT_ID; 0 on the wire

int64_t now_ns();

// Threads: any. Members with `_locked` and the guarded fields of nodes need `mutex()`.
class SourceTree {
 public:
  SourceTree();

  std::mutex& mutex() { return mutex_; }

  SourceNodePointer root() const { return root_; }
  // The node of an inode number that the kernel holds, or of one that is linked.
  SourceNodePointer find(uint64_t id);
  SourceNodePointer child(const SourceNodePointer& parent, const std::string& name);

  SourceNodePointer add(const SourceNodePointer& parent, const std::string& name,
                        SourceNodePointer node);
  // Takes the name away; the node lives on while the kernel or a handle refers to it.
  void unlink(const SourceNodePointer& node);
  void move(const SourceNodePointer& node, const SourceNodePointer& new_parent,
            const std::string& new_name);
  void forget(uint64_t id, uint64_t lookups);
  void count_lookup(const SourceNodePointer& node);

  struct stat attributes(const SourceNodePointer& node);
  uint64_t next_id();

  // Every node of the checkpoint, parents first.
  std::vector<SourceNodePointer> nodes_of(const SourceCheckpoint& checkpoint);

 private:
  void attach_locked(const SourceNodePointer& parent, const SourceNodePointer& node);
  void detach_locked(const SourceNodePointer& node);
  void drop_if_unused_locked(const SourceNodePointer& node);

  std::mutex mutex_;
  const SourceNodePointer root_;
  std::unordered_map<uint64_t, SourceNodePointer> nodes_;  // guarded by mutex_
  uint64_t last_id_ = kSourceRoot;                         // guarded by mutex_
};

}  // namespace ppmr
