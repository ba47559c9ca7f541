// A checkpoint in the image store, and its nodes: directories, files, symbolic links.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fuse_target/store/image_file.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// The state goes from open to complete to sealed. An open or complete checkpoint can become failed.
// A directory is complete when its inventory.img was closed: CRIU writes that file last, so no
// further name will appear.
enum class StoredState { kOpen, kComplete, kSealed, kFailed };

std::string to_string(StoredState state);

// Whether a sealed checkpoint is in the target's --keep-dir, too.
enum class KeepState { kNo, kWriting, kKept };

std::string to_string(KeepState state);

struct StoredNode;
using StoredNodePointer = std::shared_ptr<StoredNode>;

// Threads: see the comments at the members.
class StoredCheckpoint {
 public:
  using Clock = std::chrono::steady_clock;

  StoredCheckpoint(NodeKey top, std::string source_name, std::string owner,
                   Clock::time_point begun_at = Clock::now())
      : top(top),
        source_name(std::move(source_name)),
        owner(std::move(owner)),
        begun_at(begun_at) {}

  // Constant.
  const NodeKey top;
  const std::string source_name;
  const std::string owner;  // the identity of the peer that sent the checkpoint
  const Clock::time_point begun_at;

  // May be called by any thread.
  StoredState state() const { return state_.load(std::memory_order_acquire); }
  bool failed() const { return state() == StoredState::kFailed; }
  // Returns whether this owner may remove or replace the checkpoint. No other owner may: otherwise
  // it could make the owner of this checkpoint restore other bytes.
  bool is_replaceable_by(const std::string& other_owner) const {
    return failed() && owner == other_owner;
  }
  bool takes_changes() const {
    return state() == StoredState::kOpen || state() == StoredState::kComplete;
  }
  // The first error. Later operations on the checkpoint fail with it.
  Error error() const;
  // Returns false, with no effect, when the checkpoint is sealed or failed or already in `state`.
  bool advance(StoredState state, Error error = {.errno_value = 0, .message = {}});
  std::atomic<uint64_t> landed_bytes = 0;

  // Guarded by the tree's mutex.
  size_t nodes = 0;
  size_t files = 0;
  std::vector<wire::ManifestEntry> manifest;  // entries received so far; empty after the seal
  bool manifest_too_long = false;
  uint64_t refused_seals = 0;
  std::string seal_error;  // the reason why the last seal was refused
  // What the keeper has done with the checkpoint (tree_keep.cc).
  KeepState keep = KeepState::kNo;
  std::string keep_error;        // why the keeper could not keep it
  Clock::time_point keep_after;  // the keeper tries again after this time
  bool is_passing = false;       // belongs to a migration, which removes it: not kept
  int64_t sealed_ns = 0;         // CLOCK_REALTIME

 private:
  std::atomic<StoredState> state_ = StoredState::kOpen;
  mutable Mutex mutex_;
  Error error_ PPMR_GUARDED_BY(mutex_){0, {}};
};
using StoredCheckpointPointer = std::shared_ptr<StoredCheckpoint>;

struct StoredNode {
  // Constant.
  uint64_t inode = 0;
  NodeKey key;
  wire::NodeType type = wire::NodeType::kDirectory;
  StoredCheckpointPointer checkpoint;  // null: the root of the mount
  std::string link_target;
  std::shared_ptr<ImageFile> file;  // null: the node is not a file
  // Charge for this node, so that a source cannot fill the memory with names.
  StoreCharge charge;

  // Guarded by the tree's mutex.
  wire::Attributes attributes;
  int64_t ctime_ns = 0;
  std::string name;
  std::weak_ptr<StoredNode> parent;
  bool linked = true;
  std::map<std::string, StoredNodePointer> children;
  size_t subdirectories = 0;  // number of directories among the children
  uint64_t lookups = 0;       // number of references of the kernel
  uint32_t handles = 0;       // number of handles that are open at the target
  bool forgotten = false;     // unlinked, and its source can no longer refer to it

  bool is_top() const { return checkpoint && key == checkpoint->top; }
  bool is_directory() const { return type == wire::NodeType::kDirectory; }
  bool is_file() const { return type == wire::NodeType::kFile; }
};

// The memory of a node, its file, and its entries in the tables. Measured: the process grows by 937
// bytes for each empty file with a name of 19 bytes.
inline size_t node_memory_bytes(const std::string& name, const std::string& link_target) {
  return 1024 + 2 * name.size() + link_target.size();
}

}  // namespace ppmr
