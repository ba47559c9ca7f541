// The image store: names, attributes and bytes of all checkpoints. Sources write it through the
// Sink interface; the mount and the control socket read it. Messages of sources are not trusted:
// every call of the Sink validates its arguments.
//
// Files: image_tree.cc (tables); sink_names.cc, sink_bytes.cc, sink_seal.cc (Sink);
// tree_queries.cc (mount and control socket); tree_loans.cc (loans and bundles); tree_keep.cc (kept
// checkpoints).
//
// Lock order, outer to inner: tree mutex -> file table -> a file's mutex -> store memory. A chunk
// lands without the tree mutex. Parked requests are retried, and spill files closed, with no lock
// held.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fuse_target/store/checkpoint_listing.h"
#include "fuse_target/store/parking_lot.h"
#include "fuse_target/store/stored_checkpoint.h"
#include "mount/node_view.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

inline constexpr uint64_t kRootInode = 1;  // FUSE_ROOT_ID

struct CheckpointReport {
  std::string name;
  NodeKey top;
  uint64_t inode = 0;  // inode of the top in the mount; never used for another checkpoint
  StoredState state = StoredState::kOpen;
  uint64_t bytes = 0;
  size_t files = 0;
  std::chrono::milliseconds age{0};
  std::string source_name;
  std::string owner;  // the identity of the peer that sent the checkpoint
  std::string error;
  uint64_t refused_seals = 0;
  std::string seal_error;
  KeepState keep = KeepState::kNo;
  std::string keep_error;
  bool is_passing = false;  // belongs to a migration: not kept
};

// Threads: any. sink.h states which threads call the functions of Sink.
class ImageTree final : public Sink {
 public:
  // `top_removed` is called with the name of a checkpoint that is removed, unless the kernel
  // removes it (remove_entry()) or another checkpoint gets its name. It must not block or call the
  // tree.
  using TopRemoved = std::function<void(const std::string& name)>;
  ImageTree(
      const ImageStorage& storage, ParkingLot& parking,
      TopRemoved top_removed = [](const std::string&) {});
  ~ImageTree() override;

  // ---- Sink: for the sources.
  void session_opened(SessionId session, const std::string& source_name,
                      const std::string& owner) override;
  void session_ended(SessionId session, const std::string& reason) override;
  Status claim(SessionId session, const wire::Claim& message) override;
  Status make(SessionId session, const wire::Make& message) override;
  Status remove(SessionId session, const wire::Remove& message) override;
  Status rename(SessionId session, const wire::Rename& message) override;
  Status set_attributes(SessionId session, const wire::SetAttributes& message) override;
  Status truncate(SessionId session, const wire::Truncate& message) override;
  Status punch_hole(SessionId session, const wire::PunchHole& message) override;
  Status zeros(SessionId session, const wire::Zeros& message) override;
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

  // ---- For the mount.
  using View = NodeView;
  using Entry = DirectoryEntry;
  struct Place {
    std::string name;
    bool in_directory = false;  // the node is inside a checkpoint, not the top of one
  };

  StoredNodePointer find(uint64_t inode) const;
  // Returns null for an unknown name. `keep` counts one more reference of the kernel, until
  // forget_inode().
  StoredNodePointer look_up(const StoredNodePointer& directory, const std::string& name, bool keep);
  void forget_inode(uint64_t inode, uint64_t lookups);
  // An open file keeps its bytes when its name is removed. Errors: ESTALE for a removed file whose
  // bytes have been freed.
  Status open_file(StoredNode& node);
  void release_file(StoredNode& node);
  bool is_open(const StoredNode& node) const;
  View view(const StoredNode& node) const;
  Place place(const StoredNode& node) const;
  std::vector<Entry> entries(const StoredNodePointer& directory) const;  // including . and ..
  // Removes an entry for `rm` at the target. Returns the checkpoint's key if the entry was the
  // checkpoint itself, and nullopt if it was a file or directory inside. Errors: ENOENT, EBUSY
  // while the source may still write, ENOTDIR, EISDIR, ENOTEMPTY.
  Result<std::optional<NodeKey>> remove_entry(const StoredNodePointer& parent,
                                              const std::string& name, bool directory_wanted);
  // Removes a whole checkpoint. It must belong to `owner`, unless `owner` is empty. Errors: ENOENT,
  // EBUSY while the source may still write, EPERM for the checkpoint of another owner.
  Result<NodeKey> remove_checkpoint(const std::string& name, const std::string& owner = "");

  // ---- For the control socket. After refuse_claims(true), claim() refuses new checkpoints with
  // ESHUTDOWN.
  void refuse_claims(bool refuse) { refuses_claims_ = refuse; }
  std::vector<CheckpointReport> checkpoints() const;
  std::optional<CheckpointReport> checkpoint(const std::string& name) const;
  // Keeps memory for a checkpoint that is one file, see ImageFile::promise(). Errors: those of
  // ImageFile::promise(); EIO if the checkpoint has failed; ENOENT, EISDIR.
  Status promise(const std::string& checkpoint, uint64_t size_bytes);
  // Lends a part of a file, see ImageFile::lend(). `path` is relative to the checkpoint, and empty
  // if the checkpoint is a file. With `arrived_only` it uses ImageFile::lend_arrived(), which also
  // works before the checkpoint is sealed. Errors: ENOENT, EBUSY if the checkpoint is not sealed,
  // EIO if it has failed, EISDIR.
  struct Lent {
    uint64_t inode = 0;  // the same number for all parts of one file
    FileLoan loan;
  };
  Result<Lent> lend(const std::string& checkpoint, const std::string& path, uint64_t offset,
                    bool arrived_only = false);
  // Puts the small files of a sealed checkpoint into one sealed memfd (mount/image_bundle.h).
  // Errors: those of lend(); ENOTDIR.
  struct Bundle {
    uint64_t inode = 0;  // inode of the checkpoint
    UniqueFd memfd;
  };
  Result<Bundle> bundle(const std::string& checkpoint);
  uint64_t landed_bytes() const { return landed_bytes_; }
  // Blocks until `reached` returns true for the checkpoint, or until `timeout`. Returns the last
  // report, or nullopt when the checkpoint does not exist. wait_for() calls `reached` while it
  // holds the tree's mutex, so `reached` must not call the tree.
  using Condition = std::function<bool(const std::optional<CheckpointReport>&)>;
  std::optional<CheckpointReport> wait_for(const std::string& name, const Condition& reached,
                                           std::chrono::milliseconds timeout);
  // Makes all current and later calls of wait_for() and next_to_keep() return at once.
  void stop_waiting();

  // ---- For the keeper (fuse_target/keep).
  // A sealed checkpoint that the keeper writes. Its files keep their bytes while this object
  // exists, even if they are removed. Threads: one. Destroyed before the tree.
  class Held {
   public:
    Held(ImageTree& tree, NodeKey top) : tree(tree), top(top) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    ImageTree& tree;
    const NodeKey top;
    CheckpointListing listing;
    std::vector<StoredNodePointer> nodes;  // the nodes of `listing`, in its order
  };
  struct KeeperWork {
    std::unique_ptr<Held> to_keep;  // is now in the state kWriting; null: none is due
    std::vector<NodeKey> removed;   // checkpoints that were written or kept, and then removed
    bool stopped = false;           // stop_waiting() was called
  };
  // Blocks until there is work, at most for `timeout`.
  KeeperWork next_to_keep(std::chrono::milliseconds timeout);
  // Returns false if the checkpoint was removed or belongs to a migration, and after
  // stop_waiting().
  bool is_to_keep(NodeKey top) const;
  // Sets the state. After an error the state is kNo, `error` is the reason, and the checkpoint is
  // not due again before `keep_after`. Returns false if the checkpoint was removed or belongs to a
  // migration.
  bool set_keep(NodeKey top, KeepState state, const std::string& error = "",
                StoredCheckpoint::Clock::time_point keep_after = {});
  // Makes a checkpoint due at once, because a user waits for it.
  void keep_soon(const std::string& name);
  // Marks a checkpoint as one that a migration will remove, so that the keeper does not keep it.
  // Has no effect on a checkpoint that is kept already, or whose owner is not `owner` (unless
  // `owner` is empty).
  void mark_passing(const std::string& name, const std::string& owner = "");
  // Adds a kept checkpoint, sealed. Returns its key. Errors: EEXIST; ENOSPC if the memory limit
  // leaves no room for its names.
  Result<NodeKey> restore(CheckpointListing listing);
  // Removes a kept checkpoint unless a handle of it is open. Errors: ENOENT, EBUSY.
  Status remove_kept(NodeKey top);
  bool is_in_use(NodeKey top) const;

 private:
  struct KeyHash {
    size_t operator()(const NodeKey& key) const {
      return std::hash<uint64_t>()(key.node * 0x9e3779b97f4a7c15u ^ key.session);
    }
  };
  struct Session {
    std::string source_name;
    std::string owner;
    std::unordered_map<uint64_t, StoredNodePointer> nodes;  // by the source's id of the node
  };
  // Holds the tree's mutex. Closes discarded files on the disk after the unlock, because that can
  // take seconds.
  class PPMR_SCOPED_CAPABILITY Lock {
   public:
    explicit Lock(ImageTree& tree) PPMR_ACQUIRE(tree.mutex_) : tree_(tree) { tree_.mutex_.lock(); }
    ~Lock() PPMR_RELEASE() {
      if (holds_) unlock();
    }
    // The thread-safety analysis does not see that the lock holds tree_.mutex_.
    void unlock() PPMR_RELEASE() PPMR_NO_THREAD_SAFETY_ANALYSIS {
      std::vector<std::shared_ptr<const DiskBytes>> discarded;
      discarded.swap(tree_.discarded_);
      holds_ = false;
      tree_.mutex_.unlock();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    ImageTree& tree_;
    bool holds_ = true;
  };
  struct FileRecord {
    std::shared_ptr<ImageFile> file;
    StoredCheckpointPointer checkpoint;
  };

  // Tables (image_tree.cc).
  Result<Session*> session_locked(SessionId session) PPMR_REQUIRES(mutex_);
  Result<StoredNodePointer> node_locked(SessionId session, uint64_t node) PPMR_REQUIRES(mutex_);
  Result<StoredNodePointer> directory_locked(SessionId session, uint64_t node)
      PPMR_REQUIRES(mutex_);
  Result<StoredNodePointer> changeable_locked(SessionId session, uint64_t node)
      PPMR_REQUIRES(mutex_);
  std::optional<FileRecord> record(NodeKey key) const;
  void attach_locked(const StoredNodePointer& parent, const StoredNodePointer& node)
      PPMR_REQUIRES(mutex_);
  void detach_locked(const StoredNodePointer& node) PPMR_REQUIRES(mutex_);
  StoredNodePointer add_locked(Session& session, const StoredNodePointer& parent,
                               StoredNodePointer node) PPMR_REQUIRES(mutex_);
  void unlink_locked(const StoredNodePointer& node) PPMR_REQUIRES(mutex_);
  bool unlink_tree_locked(StoredNodePointer node) PPMR_REQUIRES(mutex_);
  void forget_key_locked(const StoredNodePointer& node) PPMR_REQUIRES(mutex_);
  void discard_locked(StoredNode& node) PPMR_REQUIRES(mutex_);
  void discard_if_unused_locked(StoredNode& node) PPMR_REQUIRES(mutex_);
  void discard_failed_locked(const StoredCheckpoint& checkpoint) PPMR_REQUIRES(mutex_);
  bool closes_checkpoint_locked(const StoredNode& node) const PPMR_REQUIRES(mutex_);
  void fail(const StoredCheckpointPointer& checkpoint, const Error& error);
  Status fail_locked(const StoredCheckpointPointer& checkpoint, Error error) PPMR_REQUIRES(mutex_);
  void report_failures();
  void state_changed(const StoredCheckpoint& checkpoint);

  Status make_locked(SessionId session, const wire::Make& message, StoredNodePointer& parent)
      PPMR_REQUIRES(mutex_);
  Status unlink_named_locked(SessionId session, const wire::Remove& message,
                             StoredNodePointer& parent, StoredNodePointer& node)
      PPMR_REQUIRES(mutex_);
  Status rename_locked(SessionId session, const wire::Rename& message, StoredNodePointer& node,
                       StoredNodePointer& new_parent) PPMR_REQUIRES(mutex_);
  void set_attributes_locked(StoredNode& node, const wire::Attributes& attributes)
      PPMR_REQUIRES(mutex_);
  Result<StoredNodePointer> changeable_file(SessionId session, uint64_t node);
  // Fails the checkpoint of a file with "OPERATION 'FILE' WHY", and returns this error.
  Status refuse(const StoredNodePointer& node, const std::string& operation,
                const std::string& why);
  std::string manifest_difference_locked(const StoredCheckpoint& checkpoint, uint64_t entry_count)
      PPMR_REQUIRES(mutex_);
  std::string entry_difference_locked(const StoredCheckpoint& checkpoint,
                                      const wire::ManifestEntry& entry) PPMR_REQUIRES(mutex_);
  // `what` is the operation, for messages.
  Result<StoredNodePointer> top_locked(const std::string& checkpoint, const std::string& what,
                                       bool sealed_only) const PPMR_REQUIRES(mutex_);
  StoredNodePointer top_of_locked(NodeKey key) const PPMR_REQUIRES(mutex_);
  bool is_in_use_locked(const StoredNode& top) const PPMR_REQUIRES(mutex_);
  std::unique_ptr<Held> hold_locked(const StoredNodePointer& top) PPMR_REQUIRES(mutex_);
  CheckpointReport report_locked(const std::string& name, const StoredNode& top) const
      PPMR_REQUIRES(mutex_);
  std::optional<CheckpointReport> checkpoint_locked(const std::string& name) const
      PPMR_REQUIRES(mutex_);

  const ImageStorage& storage_;
  ParkingLot& parking_;
  const TopRemoved top_removed_;

  mutable Mutex mutex_;
  CondVar changed_;
  const StoredNodePointer root_;  // the pointer is constant; mutex_ guards the node
  std::unordered_map<SessionId, Session> sessions_ PPMR_GUARDED_BY(mutex_);
  // Nodes that are in the tree or that the kernel refers to.
  std::unordered_map<uint64_t, StoredNodePointer> inodes_ PPMR_GUARDED_BY(mutex_);
  uint64_t last_inode_ PPMR_GUARDED_BY(mutex_) = kRootInode;
  bool waiting_stopped_ PPMR_GUARDED_BY(mutex_) = false;
  std::vector<NodeKey> removed_kept_ PPMR_GUARDED_BY(mutex_);  // see KeeperWork
  uint64_t last_restored_node_ PPMR_GUARDED_BY(mutex_) = 0;
  // See report_failures().
  std::vector<StoredCheckpointPointer> just_failed_ PPMR_GUARDED_BY(mutex_);
  // See Lock.
  std::vector<std::shared_ptr<const DiskBytes>> discarded_ PPMR_GUARDED_BY(mutex_);

  mutable SharedMutex files_mutex_;
  std::unordered_map<NodeKey, FileRecord, KeyHash> files_ PPMR_GUARDED_BY(files_mutex_);

  std::atomic<bool> refuses_claims_ = false;
  std::atomic<uint64_t> landed_bytes_ = 0;
};

}  // namespace ppmr
