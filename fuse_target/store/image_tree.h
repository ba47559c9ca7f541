// The image store: the names, attributes and bytes of all checkpoints, as their sources tell them.
// What comes through the Sink is a stranger's word and is checked here; what the mount reads comes
// from the same tree.
//
// By the files that hold it: image_tree.cc (tables), sink_names.cc, sink_bytes.cc, sink_seal.cc
// (what sources say), kernel_view.cc (what the mount and the control socket ask).
//
// Locks, outer to inner: tree mutex -> file table -> a file's mutex -> store memory. Landing bytes
// takes no tree mutex. Parked requests are tried again with no lock held.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fuse_target/store/parking_lot.h"
#include "fuse_target/store/stored_checkpoint.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

inline constexpr uint64_t kRootInode = 1;  // FUSE_ROOT_ID

struct CheckpointReport {
  std::string name;
  NodeKey top;
  StoredState state = StoredState::kOpen;
  uint64_t bytes = 0;
  size_t files = 0;
  std::chrono::milliseconds age{0};
  std::string source_name;
  std::string error;
  uint64_t refused_seals = 0;
  std::string seal_error;
};

// Threads: any, with the Sink's promise about its callers.
class ImageTree final : public Sink {
 public:
  ImageTree(const ImageStorage& storage, ParkingLot& parking);
  ~ImageTree() override;

  // ---- Sink: what the sources say.
  void session_opened(SessionId session, const std::string& source_name) override;
  void session_ended(SessionId session, const std::string& reason) override;
  Status claim(SessionId session, const wire::Claim& message) override;
  Status make(SessionId session, const wire::Make& message) override;
  Status remove(SessionId session, const wire::Remove& message) override;
  Status rename(SessionId session, const wire::Rename& message) override;
  Status set_attributes(SessionId session, const wire::SetAttributes& message) override;
  Status truncate(SessionId session, const wire::Truncate& message) override;
  Status punch_hole(SessionId session, const wire::PunchHole& message) override;
  Status opened_for_write(SessionId session, const wire::OpenedForWrite& message) override;
  Status closed(SessionId session, const wire::Closed& message) override;
  Status forget(SessionId session, const wire::Forget& message) override;
  Status announced(NodeKey file, uint64_t offset, uint32_t length) override;
  Result<Landing> reserve(NodeKey file, uint64_t offset, uint32_t length) override;
  Status land(const Landing& landing, uint64_t chunk_digest) override;
  void abandon(const Landing& landing, const Error& error) override;
  void abandon_announced(NodeKey file, uint64_t offset, uint32_t length,
                         const Error& error) override;
  Result<size_t> read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) override;
  Status manifest_entry(SessionId session, const wire::ManifestEntry& message) override;
  Status seal(SessionId session, const wire::Seal& message) override;
  Status abandon_checkpoint(SessionId session, const wire::Abandon& message) override;
  Status seal_refused(SessionId session, const wire::SealRefused& message) override;
  wire::Space space() const override;

  // ---- What the mount asks.
  struct View {  // a node's attributes at one moment
    uint64_t inode = 0;
    wire::NodeType type = wire::NodeType::kDirectory;
    wire::Attributes attributes;
    int64_t ctime_ns = 0;
    uint64_t size_bytes = 0;
    uint64_t stored_bytes = 0;
    size_t subdirectories = 0;
    bool linked = true;
  };
  struct Entry {
    std::string name;
    uint64_t inode = 0;
    wire::NodeType type = wire::NodeType::kDirectory;
  };
  struct Place {
    std::string name;
    bool in_directory = false;  // a part of a directory checkpoint, not a checkpoint by itself
  };

  StoredNodePointer find(uint64_t inode) const;
  // Null when there is no such name. `keep`: the kernel gets a reference, see forget_inode().
  StoredNodePointer look_up(const StoredNodePointer& directory, const std::string& name, bool keep);
  void forget_inode(uint64_t inode, uint64_t lookups);
  // An open file keeps its bytes when it is unlinked. Errors: ESTALE when it is too late.
  Status open_file(StoredNode& node);
  void release_file(StoredNode& node);
  bool is_open(const StoredNode& node) const;
  View view(const StoredNode& node) const;
  Place place(const StoredNode& node) const;
  std::vector<Entry> entries(const StoredNodePointer& directory) const;  // with . and ..
  // rm at the target. Gives the checkpoint's top node if it was that. Errors: ENOENT, EBUSY while
  // its source may still write, ENOTDIR, EISDIR, ENOTEMPTY.
  Result<std::optional<NodeKey>> remove_entry(const StoredNodePointer& parent,
                                              const std::string& name, bool directory_wanted);
  // rm -r of a checkpoint.
  Result<NodeKey> remove_checkpoint(const std::string& name);

  // ---- What the control socket asks.
  std::vector<CheckpointReport> checkpoints() const;
  std::optional<CheckpointReport> checkpoint(const std::string& name) const;
  uint64_t landed_bytes() const { return landed_bytes_; }
  // Waits until `done` (called with the tree's mutex held, so it asks nothing of the tree) likes
  // the checkpoint, or `timeout`; returns what it was like then.
  using Wanted = std::function<bool(const std::optional<CheckpointReport>&)>;
  std::optional<CheckpointReport> wait_for(const std::string& name, const Wanted& wanted,
                                           std::chrono::milliseconds timeout);
  // Waiters return at once, now and later.
  void stop_waiting();

 private:
  struct KeyHash {
    size_t operator()(const NodeKey& key) const {
      return std::hash<uint64_t>()(key.node * 0x9e3779b97f4a7c15u ^ key.session);
    }
  };
  struct Session {
    std::string source_name;
    std::unordered_map<uint64_t, StoredNodePointer> nodes;  // by the source's id
  };
  struct FileRecord {
    std::shared_ptr<ImageFile> file;
    StoredCheckpointPointer checkpoint;
  };

  // Tables (image_tree.cc).
  Result<Session*> session_locked(SessionId session);
  Result<StoredNodePointer> node_locked(SessionId session, uint64_t node);
  Result<StoredNodePointer> directory_locked(SessionId session, uint64_t node);
  Result<StoredNodePointer> changeable_locked(SessionId session, uint64_t node);
  std::optional<FileRecord> record(NodeKey key) const;
  void attach_locked(const StoredNodePointer& parent, const StoredNodePointer& node);
  void detach_locked(const StoredNodePointer& node);
  StoredNodePointer add_locked(Session& session, const StoredNodePointer& parent,
                               StoredNodePointer node);
  void unlink_locked(const StoredNodePointer& node);
  bool unlink_tree_locked(StoredNodePointer node);
  void drop_key_locked(const StoredNodePointer& node);
  void discard_if_unused_locked(StoredNode& node);
  void discard_failed_locked(const StoredCheckpoint& checkpoint);
  bool closes_checkpoint_locked(const StoredNode& node) const;
  void fail(const StoredCheckpointPointer& checkpoint, const Error& error);
  Status failed_in_locked(const StoredCheckpointPointer& checkpoint, Error error);
  void tell_failures();
  void state_changed(const StoredCheckpoint& checkpoint);

  Status make_locked(SessionId session, const wire::Make& message, StoredNodePointer& parent);
  Status unlink_named_locked(SessionId session, const wire::Remove& message,
                             StoredNodePointer& parent, StoredNodePointer& node);
  Status rename_locked(SessionId session, const wire::Rename& message, StoredNodePointer& node,
                       StoredNodePointer& new_parent);
  Result<StoredNodePointer> change_file(SessionId session, uint64_t node);
  std::string manifest_difference_locked(const StoredCheckpoint& checkpoint, uint64_t entry_count);
  std::string entry_difference_locked(const StoredCheckpoint& checkpoint,
                                      const wire::ManifestEntry& entry);
  CheckpointReport report_locked(const std::string& name, const StoredNode& top) const;
  std::optional<CheckpointReport> checkpoint_locked(const std::string& name) const;

  const ImageStorage& storage_;
  ParkingLot& parking_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  StoredNodePointer root_;
  std::unordered_map<SessionId, Session> sessions_;
  std::unordered_map<uint64_t, StoredNodePointer> inodes_;  // linked, or known to the kernel
  uint64_t last_inode_ = kRootInode;
  bool waiting_stopped_ = false;
  std::vector<StoredCheckpointPointer> just_failed_;  // see tell_failures()

  mutable std::shared_mutex files_mutex_;
  std::unordered_map<NodeKey, FileRecord, KeyHash> files_;  // guarded by files_mutex_

  std::atomic<uint64_t> landed_bytes_ = 0;
};

}  // namespace ppmr
