// Keeps the newest epochs of each tree that this node is a partner of, in a tmpfs that only root
// sees. The store needs no daemon, so a restart of the target's daemon loses nothing. A restart of
// the node loses all epochs.
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
// To seal an epoch, the store appends its pages to the memory file and replaces state.json. Then it
// frees the pages that only dropped epochs used. So there is always one complete epoch, and the
// store needs the memory of the tree plus the pages that the kept epochs have changed.
//
// A held epoch keeps its pages when later epochs are sealed.
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

  // Replaces state.json. Errors: those of the file system.
  Status write(const EpochState& state);
  // Removes all epochs that the state does not keep, and memory files of other runs.
  void remove_others() const;
  // Removes everything except the state, which says that the tree was taken over. Also removes the
  // epoch on the disk. Errors: those of the file system, if the epoch is still on the disk.
  Status remove_epochs() const;
  // Removes everything. Removes the epoch on the disk first: a discarded epoch must not return to
  // memory. Errors: those of the file system.
  Status discard();
  void note_contact() const;

  // Returns what the disk has of the tree. Errors: ENOENT: epochs are not written to a disk;
  // EPROTO.
  Result<EpochOnDisk> on_disk() const;
  // Returns whether the disk has an epoch of the tree, or may have one because on_disk() fails with
  // another error than ENOENT.
  bool may_be_on_disk() const;
  Status note_on_disk(const EpochOnDisk& on_disk) const;
  // Removes the epoch's file from the disk, durably. Succeeds if there is none.
  Status remove_from_disk() const;
  // Returns the directory into which an epoch is read from the disk.
  std::string returning_directory() const;
  // Holds one epoch, and releases the one that was held before. Returns the directory of the held
  // epoch, which does not change until the epoch is released or all epochs are removed. Errors:
  // ENOENT: the epoch is not kept; those of the file system.
  Result<std::string> hold(uint64_t number) const;
  // Releases the held epoch, and frees the pages that only it used. Idempotent.
  void release_held() const;

 private:
  friend class EpochStore;
  std::string directory_;
  UniqueFd lock_;
  EpochState state_;
  bool exists_ = false;
};

// The parts of an epoch that has arrived at the partner.
struct ArrivedEpoch {
  std::string images;          // a directory: the description
  uint64_t memory_offset = 0;  // where the pages of this epoch belong in the memory file
  uint64_t memory_bytes = 0;
  // Returns the bytes at `offset` of these pages: at least one byte, and at most as many as
  // `scratch` has room for. The bytes may be in `scratch`.
  std::function<Result<std::span<const std::byte>>(uint64_t offset, std::span<std::byte> scratch)>
      read;
};

// Threads: any. Any number of processes may use one directory.
class EpochStore {
 public:
  // Mounts a tmpfs at the directory unless it has one. Errors: those of the file system; EPERM if
  // other users have access to it; EACCES if it belongs to another user.
  static Result<EpochStore> open(std::string directory = kEpochsDirectory);
  // Opens the store for a command that only reads: mounts nothing. Returns nullopt if there is no
  // store. Errors: those of open().
  static Result<std::optional<EpochStore>> open_existing(std::string directory = kEpochsDirectory);

  // Locks the directory of a tree. Blocks until no other process has the lock. Creates the
  // directory of a new name, which has no state yet. Errors: EINVAL for an invalid name; those of
  // the file system; EPROTO for a state that ppmr has not written.
  Result<LockedEpochs> lock(const std::string& name) const;
  // Does what lock() does, but fails with EWOULDBLOCK instead of blocking.
  Result<LockedEpochs> try_lock(const std::string& name) const;
  // Returns the state as it is now. Errors: ENOENT; EPROTO.
  Result<EpochState> read(const std::string& name) const;
  Result<std::vector<EpochState>> list() const;
  // Returns the names of all copies that have a directory, with or without a state.
  std::vector<std::string> copies() const;
  // Returns what the disk has of a tree. Errors: ENOENT: epochs are not written to a disk; EPROTO.
  Result<EpochOnDisk> on_disk(const std::string& name) const;
  // Returns the names that have no state, and whose epoch on the disk could not be read.
  std::vector<std::string> unreadable() const;
  // Returns the path of an epoch's directory, whether the epoch is kept or not.
  std::string epoch_directory(const std::string& name, uint64_t number) const;
  // Returns the time of the source's last request (CLOCK_REALTIME). Errors: ENOENT.
  Result<int64_t> contact_ns(const std::string& name) const;

 private:
  explicit EpochStore(std::string directory) : directory_(std::move(directory)) {}
  Result<LockedEpochs> lock_with(const std::string& name, int operation) const;
  std::string directory_;
};

// Copies an epoch that the daemon has sealed, and makes it the newest of `locked`. `next`: see
// with_newest(). If it fails, the previous epoch stays the newest. Errors: those of `arrived.read`;
// those of the file system, such as ENOSPC; EPROTO if the page index does not fit the memory, or if
// pages of the newest epoch would be overwritten.
Status seal_epoch(LockedEpochs& locked, const EpochState& next, const ArrivedEpoch& arrived);

// Copies the epoch `copy.newest`, which `from` keeps, and makes it the newest of `to`. Writes the
// state `copy` to `to`. Later epochs of `from` do not change the copied epoch. Errors: ENOENT;
// those of seal_epoch().
Status copy_epoch(const LockedEpochs& from, LockedEpochs& to, const EpochState& copy);

}  // namespace ppmr
