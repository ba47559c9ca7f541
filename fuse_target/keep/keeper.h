// Keeps checkpoints: writes each sealed checkpoint to the target's --keep-dir in the background,
// and brings the kept ones back when the daemon starts.
//
//   sealed --> NUMBER.part, synced --> NUMBER.kept, directory synced --> "kept"
//                                      (a rename)
//
// A file gets its .kept name only after all of it is on the disk. The keeper reports a checkpoint
// as kept only after this name is on the disk. There are two threads. One thread writes
// checkpoints, chooses the expired ones and gives memory back. The other thread removes files, so
// that an `rm -r` at the mount does not wait for a checkpoint that is being written.
//
// Files: keeper.cc (the threads), keep_checkpoint.cc (writes one checkpoint), load_kept.cc (loads
// the kept ones at the start).
//
// Rejected: writing while the checkpoint arrives. Bytes arrive in the order of the network,
// programs write bytes of a file repeatedly, and most checkpoints of migrations are removed before
// the keeper would keep them.
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
  // The wait after the first failure to keep a checkpoint. It doubles with each further failure, up
  // to 64 times this value. When the disk is full, it does not grow.
  std::chrono::milliseconds retry_after{2'000};
};

struct KeepReport {
  struct Unreadable {
    std::string file;  // its name in the directory
    std::string name;  // the checkpoint's name in the header of the file; may be empty
    std::string reason;
  };
  size_t checkpoints = 0;         // number of kept checkpoints
  uint64_t bytes = 0;             // their bytes on the disk
  uint64_t free_bytes = 0;        // free on the disk at the last check
  uint64_t failures = 0;          // attempts that failed since the start
  uint64_t expired = 0;           // checkpoints that the limits have removed since the start
  uint64_t given_back_bytes = 0;  // memory of kept checkpoints that was given back since the start
  int64_t newest_sealed_ns = 0;   // CLOCK_REALTIME; 0: none is kept
  std::string writing;            // the name of the checkpoint that is being written
  uint64_t written_bytes = 0;     // bytes of that checkpoint that are written
  std::string error;              // the error of the last attempt; empty if the attempt succeeded
  std::vector<Unreadable> unreadable;
};

// Threads: any, except load() and start(), which are called once, in this order.
class Keeper {
 public:
  // Called when a removal is on the disk, or has failed.
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

  // Removes the kept copy of a checkpoint that was removed from the tree. Calls `done` exactly
  // once, possibly before removed() returns.
  void removed(NodeKey top, Removed done);
  // Gives back the memory of the oldest kept checkpoint that is in memory. Readers get its bytes
  // from the disk from now on. Returns false if no kept checkpoint is in memory.
  bool give_back_oldest();
  // Returns the number of bytes that all calls of give_back_oldest() together would free.
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
    std::vector<InMemory> in_memory;       // the files whose memory give_back_oldest() can free
    uint64_t memory_bytes = 0;             // the bytes of this memory
    bool is_removed = false;               // removed from the tree; the file will be removed
    std::vector<Removed> removed;          // called when the file is removed
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
  void remove_half_written(int32_t number, bool is_also_complete);
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
  int32_t last_number_ = 0;  // only load() and the writing thread use it

  mutable Mutex mutex_;
  CondVar removals_changed_;
  std::map<NodeKey, Entry, KeyLess> entries_ PPMR_GUARDED_BY(mutex_);  // being written, or kept
  std::map<NodeKey, int, KeyLess> attempts_ PPMR_GUARDED_BY(mutex_);   // number of failed attempts
  std::vector<NodeKey> removals_ PPMR_GUARDED_BY(mutex_);  // entries whose files the thread removes
  bool removals_end_ PPMR_GUARDED_BY(mutex_) = false;
  KeepReport report_ PPMR_GUARDED_BY(mutex_);  // the parts that do not follow from entries_

  std::thread writer_;
  std::thread remover_;
};

}  // namespace ppmr
