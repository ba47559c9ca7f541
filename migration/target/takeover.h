// Takes over a protected tree whose source is lost: this node restores its newest epoch, holds the
// tree, and lets it run after the decision that the source's copy never runs again.
//
//   begin_takeover()   record (restoring) -> supervisor -> tree_restore -> hook: ready
//   decide_takeover()  under the lock of the epochs: running
//
// It is a migration without a source: the same record, supervisor and hook, and the event with
// which an operator decides for a lost node. A source that is still alive sends a request before
// its next epoch (epoch_requests.h). This node answers it under the same lock: it either aborts the
// takeover, or makes the source end its own copy.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "migration/epochs/epoch_store.h"
#include "migration/records/record_store.h"
#include "processes/carried/written_files.h"

namespace ppmr {

// Starts the restore of an epoch, or returns the record of a takeover that has begun and is not
// decided. `number`: 0 means the newest. The directory of `records` must be that of the target's
// daemon. Errors: those of check_takeover(); those of the file system; ECHILD if no supervisor can
// be started.
Result<OwnershipRecord> begin_takeover(const RecordStore& records, const EpochStore& epochs,
                                       const std::string& name, uint64_t number);

// Copies an epoch under the name copy_name(name), and returns the lock of the copy. Checks an
// earlier copy under this lock, so hold the lock until the migration has begun. Errors: those of
// check_takeover(), check_copy() and copy_epoch(); EEXIST, EADDRINUSE, EADDRNOTAVAIL: this node
// cannot give the copy a pid or an address of the tree; the message names it.
Result<LockedEpochs> prepare_copy(const RecordStore& records, const EpochStore& epochs,
                                  const std::string& name, uint64_t number);

// Starts the restore of a copy beside its source: its record has copy_name(name). Errors: those of
// prepare_copy() and begin_takeover(); after an error, nothing of the copy is left.
Result<OwnershipRecord> begin_copy(const RecordStore& records, const EpochStore& epochs,
                                   const std::string& name, uint64_t number);

// Discards what is left of copies that were aborted, or whose command was killed. Does not touch a
// copy that another process is making.
void discard_abandoned_copies(const RecordStore& records, const EpochStore& epochs);

// Returns the pid of a copy of `name` that runs here; 0: none does. The copy may have the pids and
// addresses that a takeover of `name` needs.
pid_t find_running_copy(const RecordStore& records, const EpochStore& epochs,
                        const std::string& name);

struct ChangedFile {
  WrittenFile noted;  // what the epoch has noted about the file
  uint64_t now_bytes = 0;
  // The tree only appends to it, it has grown, and open_to_cut() succeeds.
  bool can_be_cut = false;
};

// Returns the files that the tree writes and whose size or time of modification differs from the
// epoch: the tree has written them since, or this node has another file of the same name. Returns
// at most kChangedFilesMax files. Errors: those of the file system; EPROTO.
inline constexpr size_t kChangedFilesMax = 10'000;
Result<std::vector<ChangedFile>> changed_files(const EpochState& state, uint64_t number);

// Lets the restored tree run. With `cuts_files`, first cuts the files to which the tree appends
// back to their size in the epoch. Errors: ECANCELED if the source has sent a request in the
// meantime; ECHILD if the tree could not be restored; EPERM if it is not restored yet.
Result<OwnershipRecord> decide_takeover(const RecordStore& records, const EpochStore& epochs,
                                        const std::string& name, const std::string& id,
                                        bool cuts_files);

// Aborts a takeover that is not decided. Waits for the end of its supervisor, for a limited time.
void abandon_takeover(const RecordStore& records, const std::string& id, const std::string& why);

// Returns the state of the migration that takes a tree over; nullopt: there is none. If its record
// was removed after its end, forget_epochs() has noted in `state` that it has finished. Errors:
// EAGAIN: the record cannot be read or is missing, so it is unknown which node may run the tree.
// Then neither the source may be ended, nor the epochs removed.
Result<std::optional<MigrationState>> takeover_state(const RecordStore& records,
                                                     const EpochState& state);

// Returns whether the record of the takeover is missing or was set aside. Then only an operator can
// find out what became of it, and may discard the epochs.
bool has_lost_record(const RecordStore& records, const EpochState& state);

// Returns the migration that has let this tree run at this node; empty: there is none. `peer`: the
// identity of the source. Errors: EAGAIN: it is unknown whether there is one, because a record
// cannot be read.
Result<std::string> find_taken_over(const RecordStore& records, const std::string& name,
                                    const std::string& peer, const ProtectedTree& tree);

// Called when migration `id` has taken the tree over and the tree runs here with all of its memory.
// Frees the memory of its epochs. The state remains, and notes that the source was replaced. A tree
// that rolls back keeps its epochs, because it may roll back to them again. Does nothing if the
// name has another takeover or none: the epochs then belong to another process.
Status forget_epochs(const EpochStore& epochs, const std::string& name, const std::string& id);

}  // namespace ppmr
