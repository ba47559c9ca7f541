// Receives what arrives of a tree before its restore: the sealed images, the files in memory and
// the shared memory (received_files.h), and in post-copy the promise of room for its memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "migration/records/record_store.h"
#include "migration/target/received_files.h"
#include "migration/target/received_memory.h"

namespace ppmr {

// A file in the work directory. Its number is the time at which the source last reported a pause by
// an operator (CLOCK_REALTIME, ns).
inline constexpr const char* kPausedFile = "/paused-at";

// The socket of the target's daemon. Errors: those of find_mount().
Result<std::string> control_socket_of(const OwnershipRecord& record);

// Returns whether the tree comes from an epoch that this node keeps. If so, its source sends
// nothing.
bool is_taken_over(const TreeRecord& tree);

// Nothing arrives of a tree that is taken over: the calls succeed at once. Threads: one.
class TreeArrival {
 public:
  using ReadRecord = std::function<Result<OwnershipRecord>()>;
  // `work`: the work directory of the restore. `read` returns the latest record.
  TreeArrival(const OwnershipRecord& record, size_t tree, std::string work, ReadRecord read);

  // Begins to receive files in memory and shared memory. Errors: those of the daemon.
  Status begin();
  // Waits until the source has sealed the checkpoint. Rounds and the dump may take any time, but
  // must not stall for longer than the hold limit, unless an operator pauses them. Returns the
  // inode of the checkpoint's directory; 0 for a tree that is taken over. Errors: ECANCELED if the
  // migration was aborted in the meantime; ETIMEDOUT without progress; those of the daemon.
  Result<uint64_t> await_sealed() const;
  // Checks that the memory comes from the peer that asks for the restore. The memory may still be
  // on its way. Errors: EPERM.
  Status check_owner_of_memory() const;
  // Returns when all files and shared memory are in place. `is_over` ends the wait. Errors: those
  // of ReceivedFiles and ReceivedMemory.
  Status await_files(const std::function<bool()>& is_over);
  // Call it before each attempt to restore. Errors: those of ReceivedMemory.
  Status offer_to_criu() { return shared_memory_.offer_to_criu(work_); }
  // Reserves room in the image store for the memory, which arrives after the decision. `images`:
  // the path of the images. Errors: ENOSPC; those of the daemon.
  Status keep_room_for_memory(const std::string& images) const;
  // Stops receiving, and removes the files that have arrived.
  void discard();
  // Removes the mounts that were built for the restore: a tree that runs has mounts of its own.
  void remove_mounts() const;

 private:
  // What changes while the migration goes on, or is paused by an operator.
  struct Progress {
    uint64_t arrived_bytes = 0;
    uint64_t paused_at_ns = 0;
    bool operator==(const Progress&) const = default;
  };
  std::optional<Progress> progress(const std::string& socket) const;
  std::string files_directory() const;
  const TreeRecord& tree() const { return record_.trees[tree_]; }

  const OwnershipRecord record_;
  const size_t tree_;
  const std::string work_;
  const ReadRecord read_;
  std::optional<ReceivedFiles> files_;
  ReceivedMemory shared_memory_;
};

}  // namespace ppmr
