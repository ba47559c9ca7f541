// The names and attributes of the source mount. The source decides about names and attributes: it
// serves look-ups and attributes from this tree, and sends every change to the target.
//
// A top-level entry is a checkpoint. The entry and every node below it refer to one
// SourceCheckpoint.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fuse_source/file_writer.h"
#include "mount/node_view.h"
#include "rdma_stream/session/outlet.h"

namespace ppmr {

enum class CheckpointState { kOpen, kSealing, kSealed };

// A checkpoint of this source. It has failed if `error` or the status of the outlet is an error.
struct SourceCheckpoint {
  uint64_t top_node = 0;
  std::shared_ptr<Outlet> outlet;  // the session that carries the checkpoint
  std::shared_ptr<StickyError> error = std::make_shared<StickyError>();
  std::chrono::steady_clock::time_point begun_at = std::chrono::steady_clock::now();
  CheckpointState state = CheckpointState::kOpen;  // guarded by the tree's mutex
  std::atomic<bool> removed_at_target = false;
  // True: close(2) neither waits for the target nor reports errors. The process that makes the
  // checkpoint gets the errors when it seals the checkpoint.
  std::atomic<bool> defers_errors = false;
  // The time that the session waits for a silent target because of this checkpoint, if that is
  // longer than the peer timeout.
  std::atomic<std::chrono::milliseconds> patience{};

  // Returns the error if the checkpoint has failed, else success.
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
  std::shared_ptr<FileWriter> writer;  // null: the node is not a file

  // The number of truncations and holes of a file, and the number of those that the target has
  // confirmed.
  std::atomic<uint64_t> changes_sent = 0;
  std::atomic<uint64_t> changes_applied = 0;

  // Guarded by the tree's mutex.
  std::string name;
  std::weak_ptr<SourceNode> parent;  // expired or null: unlinked
  bool linked = true;
  wire::Attributes attributes;
  int64_t ctime_ns = 0;
  std::map<std::string, std::shared_ptr<SourceNode>> children;
  size_t subdirectories = 0;  // stored, because counting them for each stat() dominated its cost
  uint64_t lookup_count = 0;  // number of references of the kernel
  uint32_t open_handles = 0;
  uint32_t open_writers = 0;     // handles that are open for writing
  uint32_t closing_writers = 0;  // those of open_writers whose close is in progress
  uint64_t writers_so_far = 0;   // number of times that the file was opened for writing
};
using SourceNodePointer = std::shared_ptr<SourceNode>;

inline constexpr uint64_t kSourceRoot = 1;  // FUSE_ROOT_ID; the wire format uses 0 instead

// Threads: any. Members with `_locked` and the guarded fields of nodes need `mutex()`.
class SourceTree {
 public:
  SourceTree();

  Mutex& mutex() PPMR_RETURN_CAPABILITY(mutex_) { return mutex_; }

  SourceNodePointer root() const { return root_; }
  // Returns the node with inode number `id` if the node is linked, open or referenced by the
  // kernel; else null.
  SourceNodePointer find(uint64_t id);
  SourceNodePointer child(const SourceNodePointer& parent, const std::string& name);

  SourceNodePointer add(const SourceNodePointer& parent, const std::string& name,
                        SourceNodePointer node);
  void move(const SourceNodePointer& node, const SourceNodePointer& new_parent,
            const std::string& new_name);

  // A file ends when it is unlinked and its last handle is closed, in either order. Exactly one
  // call of unlink() or close_handle_locked() ends the file, and that call returns true.
  bool unlink(const SourceNodePointer& node);
  bool close_handle_locked(const SourceNodePointer& node) PPMR_REQUIRES(mutex_);

  void forget(uint64_t id, uint64_t lookups);
  // Like view(), and also counts one more reference of the kernel to the node. A later forget()
  // drops the reference.
  NodeView view_for_lookup(const SourceNodePointer& node);
  NodeView view(const SourceNodePointer& node);
  std::vector<DirectoryEntry> entries(const SourceNodePointer& directory);
  uint64_t next_id();

  // Returns the top nodes of all checkpoints.
  std::vector<SourceNodePointer> tops();
  // Returns the node with this id if it is the top node of a checkpoint; else null.
  SourceNodePointer find_top(uint64_t id);
  // Returns every node of the checkpoint, parents first.
  std::vector<SourceNodePointer> nodes_of(const SourceCheckpoint& checkpoint);

 private:
  NodeView view_locked(const SourceNode& node) const PPMR_REQUIRES(mutex_);
  void attach_locked(const SourceNodePointer& parent, const SourceNodePointer& node)
      PPMR_REQUIRES(mutex_);
  void detach_locked(const SourceNodePointer& node) PPMR_REQUIRES(mutex_);
  void drop_if_unused_locked(const SourceNodePointer& node) PPMR_REQUIRES(mutex_);

  Mutex mutex_;
  const SourceNodePointer root_;
  std::unordered_map<uint64_t, SourceNodePointer> nodes_ PPMR_GUARDED_BY(mutex_);
  uint64_t last_id_ PPMR_GUARDED_BY(mutex_) = kSourceRoot;
};

}  // namespace ppmr
