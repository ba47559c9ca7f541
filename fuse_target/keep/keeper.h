// Keeps checkpoints: writes each sealed checkpoint to the target's --keep-dir in the background,
// and brings the kept ones back when the daemon starts.
//
//   sealed --> NUMBER.part, synced --> NUMBER.kept, directory synced --> "kept"
//                                      (a rename)
//
// Nothing is visible under a .kept name before all of it is on the disk, and nothing is reported as
// kept before its name is. Two threads: one writes, expires and gives memory back; the other one
// removes, so that a `rm -r` at the mount does not wait for a checkpoint that is being written.
//
// Files: keeper.cc (the threads), keep_checkpoint.cc (writing one), load_kept.cc (the start).
//
// Rejected: writing while the checkpoint arrives. The order of arrival is that of the network,
// files are written again, and most checkpoints of migrations are removed before they would be
// kept.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "daemon/privilege/kept_files.h"
#include "fuse_target/keep/keep_keys.h"
#include "fuse_target/keep/kept_file.h"
#include "fuse_target/keep/retention.h"
#include "fuse_target/store/image_tree.h"

namespace ppmr {

struct KeeperOptions {
  std::string directory;  // for messages
  RetentionLimits retention;
  // The first wait after a failure. It doubles up to a hundred times this.
  std::chrono::milliseconds retry_after{2'000};
};

struct KeepReport {
  struct Unreadable {
    std::string file;  // in the directory
    std::string name;  // of the checkpoint, as its header says; may be empty
    std::string reason;
  };
  size_t checkpoints = 0;         // kept
  uint64_t bytes = 0;             // their bytes on the disk
  uint64_t free_bytes = 0;        // of the disk, a moment ago
  uint64_t failures = 0;          // attempts that failed since the start
  uint64_t expired = 0;           // checkpoints that the limits have removed since the start
  uint64_t given_back_bytes = 0;  // of kept checkpoints, not in memory any more
  int64_t newest_sealed_ns = 0;   // CLOCK_REALTIME; 0: none is kept
  std::string writing;            // the name of the checkpoint that is being written
  uint64_t written_bytes = 0;     // of it
  std::string error;              // of the last attempt; empty if it succeeded
  std::vector<Unreadable> unreadable;
};

// Threads: any, except load() and start(), which are called once, in this order.
class Keeper {
 public:
  // Called when a removal is on the disk, or cannot get there.
  using Removed = std::function<void(const Status&)>;

  // All references outlive this object.
  Keeper(KeptFiles& files, LockedKeepKeys keys, KeeperOptions options, ImageTree& tree,
         StoreMemory& memory);
  ~Keeper();  // calls stop()

  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Removes half-written files, and adds the kept checkpoints to the tree. A file that cannot be
  // used is logged and reported, and left alone. Errors: those of listing the directory.
  Status load();
  void start();
  // Ends both threads. Drops the checkpoint that is being written, and finishes removals.
  void stop();

  // For a checkpoint that was removed from the tree: removes its kept copy, too. Calls `done` once,
  // maybe before it returns.
  void removed(NodeKey top, Removed done);
  // Gives the memory of the oldest kept checkpoint back; it is read from the disk from now on.
  // Returns false if there is none.
  bool give_back_oldest();
  // What all calls of give_back_oldest() together would free.
  uint64_t bytes_to_give_back() const;
  KeepReport report() const;

 private:
  struct InMemory {
    std::weak_ptr<ImageFile> file;
    KeptBytes kept;
  };
  struct Entry {
    int32_t number = 0;
    std::string name;
    int64_t sealed_ns = 0;
    std::shared_ptr<const KeptFile> file;  // null: it is being written
    std::vector<InMemory> in_memory;       // what give_back_oldest() can free
    uint64_t memory_bytes = 0;             // how much that is
    bool is_removed = false;               // from the tree; its file is about to go
    std::vector<Removed> removed;          // who waits for that
  };
  struct KeyLess {
    bool operator()(const NodeKey& a, const NodeKey& b) const {
      return std::pair(a.session, a.node) < std::pair(b.session, b.node);
    }
  };

  void run();
  void run_removals();
  // keep_checkpoint.cc
  void keep(const ImageTree::Held& held);
  Status write(const ImageTree::Held& held, int32_t number);
  Status write_bytes(const ImageTree::Held& held, const KeptIndex& index, class KeptWriter& writer);
  void note_written(uint64_t bytes);
  void rest(std::chrono::nanoseconds after) const;
  Status check_space(uint64_t needed_bytes);
  Status publish(int32_t number);
  Result<Entry> open_written(const ImageTree::Held& held, int32_t number);
  Status verify(const ImageTree::Held& held, const KeptFile& file) const;
  Status check_wanted(const ImageTree::Held& held) const;
  void kept(const ImageTree::Held& held, Entry entry);
  void not_kept(const ImageTree::Held& held, int32_t number, const Error& error);
  // load_kept.cc
  Status load_one(int32_t number);
  void unreadable(int32_t number, const std::string& name, const std::string& reason);

  Status remove_file(int32_t number);
  void note_lost_files();
  void apply_retention();
  void relieve_memory();
  std::string path_of(int32_t number, bool complete) const;

  KeptFiles& files_;
  const LockedKeepKeys keys_;
  const KeeperOptions options_;
  ImageTree& tree_;
  StoreMemory& memory_;
  std::atomic<bool> stopping_{false};
  int32_t last_number_ = 0;  // of the writing thread

  mutable Mutex mutex_;
  CondVar removals_changed_;
  std::map<NodeKey, Entry, KeyLess> entries_ PPMR_GUARDED_BY(mutex_);  // written and kept ones
  std::map<NodeKey, int, KeyLess> attempts_ PPMR_GUARDED_BY(mutex_);   // that failed
  std::vector<NodeKey> removals_ PPMR_GUARDED_BY(mutex_);  // entries whose files the thread removes
  bool removals_end_ PPMR_GUARDED_BY(mutex_) = false;
  KeepReport report_ PPMR_GUARDED_BY(mutex_);  // the parts that do not follow from entries_

  std::thread writer_;
  std::thread remover_;
};

}  // namespace ppmr
