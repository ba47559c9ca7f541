// The newest epochs of each tree whose partner this node is, in memory: a tmpfs that only root
// sees. It needs no daemon, so a restart of the target's daemon loses nothing. A restart of the
// node does.
//
//   /run/ppmr/epochs/NAME/lock             held while an epoch is sealed, and while a takeover is
//                                          decided
//                        /contact          its modification time: the source's last request
//                        /state.json       EpochState, replaced by rename(2)
//                        /memory-RUN       the pages of all kept epochs of a run; sparse
//                        /epoch-N/images   CRIU's description, with the page index
//                        /epoch-N/memory   a hard link to memory-RUN
//                        /on-disk.json     EpochOnDisk, if the target writes epochs to a disk
//                        /held             hard links to the epoch that is being written there
//                        /returning        an epoch that is being read from there
//
// Sealing copies the pages of an epoch behind those of the earlier ones, and replaces state.json.
// Then the pages that only epochs used which are not kept any more are given back to the kernel. So
// there is always one complete epoch, and the memory is that of the tree plus what the kept epochs
// have changed.
//
// An epoch that is held keeps its pages although later ones are sealed.
//
// Rejected: to write changed pages over the old ones. A partner that dies meanwhile would keep a
// mixture of two epochs.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/epochs/epoch_on_disk.h"
#include "migration/epochs/epoch_state.h"

namespace ppmr {

// Holds the lock of one tree's directory. Threads: one.
class LockedEpochs {
 public:
  const EpochState& state() const { return state_; }
  bool exists() const { return exists_; }  // whether there is a state
  const std::string& directory() const { return directory_; }
  std::string epoch_directory(uint64_t number) const;

  // Replaces state.json. Errors: of the file system.
  Status write(const EpochState& state);
  // Removes all epochs that the state does not keep, and memory files of other runs.
  void remove_others() const;
  // Removes everything but the state, which says that the tree was taken over. Also from the disk.
  // Errors: of the file system, if the disk still has its epoch.
  Status remove_epochs() const;
  // Removes everything, from the disk first: what is forgotten must not come back. Errors: of the
  // file system.
  Status discard();
  void note_contact() const;

  // What the disk has. Errors: ENOENT: epochs are not written to a disk; EPROTO.
  Result<EpochOnDisk> on_disk() const;
  Status note_on_disk(const EpochOnDisk& on_disk) const;
  // Removes the file, durably. Succeeds if there is none.
  Status remove_from_disk() const;
  // Where an epoch is read to from the disk.
  std::string returning_directory() const;
  // Holds an epoch. Returns its directory, which does not change until it is released or all
  // epochs are removed. One at a time. Errors: ENOENT: it is not kept; of the file system.
  Result<std::string> hold(uint64_t number) const;
  // Gives back what only the held epoch has used. Idempotent.
  void release_held() const;

 private:
  friend class EpochStore;
  std::string directory_;
  UniqueFd lock_;
  EpochState state_;
  bool exists_ = false;
};

// What one epoch consists of, at the partner.
struct ArrivedEpoch {
  std::string images;          // a directory: the description
  uint64_t memory_offset = 0;  // where the pages of this epoch belong in the memory file
  uint64_t memory_bytes = 0;
  // Returns bytes at an offset of these pages: at least one, at most as many as the scratch has
  // room for. They may be in the scratch.
  std::function<Result<std::span<const std::byte>>(uint64_t offset, std::span<std::byte> scratch)>
      read;
};

// Threads: any. Any number of processes may use one directory.
class EpochStore {
 public:
  // Mounts a tmpfs at the directory if it is none. Errors: of the file system; EPERM if other users
  // may write to it.
  static Result<EpochStore> open(std::string directory = kEpochsDirectory);
  // Opens the store for a command that only reads: mounts nothing. nullopt: there is none. Errors:
  // as open(); EACCES for another user than its owner.
  static Result<std::optional<EpochStore>> open_existing(std::string directory = kEpochsDirectory);

  // Blocks until no other process has the lock. The state does not exist yet for a new name.
  // Errors: EINVAL for an invalid name; of the file system; EPROTO for a state that ppmr has not
  // written.
  Result<LockedEpochs> lock(const std::string& name) const;
  // As lock(). Errors: EWOULDBLOCK instead of blocking.
  Result<LockedEpochs> try_lock(const std::string& name) const;
  // Returns the state as it is now. Errors: ENOENT; EPROTO.
  Result<EpochState> read(const std::string& name) const;
  Result<std::vector<EpochState>> list() const;
  // The names of copies of which something is kept, also those without a state.
  std::vector<std::string> copies() const;
  // What the disk has of a tree. Errors: ENOENT: epochs are not written to a disk; EPROTO.
  Result<EpochOnDisk> on_disk(const std::string& name) const;
  // Names without a state whose epoch on the disk could not be read.
  std::vector<std::string> unreadable() const;
  // The directory of an epoch, whether it is kept or not.
  std::string epoch_directory(const std::string& name, uint64_t number) const;
  // When the source has made its last request (CLOCK_REALTIME). Errors: ENOENT.
  Result<int64_t> contact_ns(const std::string& name) const;

 private:
  explicit EpochStore(std::string directory) : directory_(std::move(directory)) {}
  Result<LockedEpochs> lock_with(const std::string& name, int operation) const;
  std::string directory_;
};

// Copies an epoch that the daemon has sealed, and makes it the newest of `locked`. `next`: see
// with_newest(). On an error the epoch before stays the newest. Errors: those of
// BorrowedFile; of the file system, ENOSPC above all; EPROTO for a page index that does not fit the
// memory.
Status seal_epoch(LockedEpochs& locked, const EpochState& next, const ArrivedEpoch& arrived);

// Copies an epoch that `from` keeps, and makes it the newest of `to`, whose state is to be `copy`.
// Later epochs of `from` do not change it. Errors: ENOENT; those of seal_epoch().
Status copy_epoch(const LockedEpochs& from, LockedEpochs& to, const EpochState& copy);

}  // namespace ppmr
