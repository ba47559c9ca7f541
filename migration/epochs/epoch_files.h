// Prepares an epoch's directory to leave the memory of its partner and to return later, perhaps on
// another node. The directory then also holds the state of the tree.
#pragma once

#include <cstdint>
#include <string>

#include "migration/epochs/epoch_store.h"

namespace ppmr {

// Writes the state into the directory of the epoch, as if that epoch were the only one. Until the
// directory is copied, the caller must keep the lock of the tree, hold the epoch, or prevent the
// seal of later epochs. Errors: ENOENT if the epoch is not kept; those of the file system.
Status note_state_of(const LockedEpochs& locked, uint64_t number);

// Returns the state in a directory that was brought back. Errors: EPROTO; those of the file system.
Result<EpochState> read_noted_state(const std::string& directory);

// Makes a directory that was brought back, locked.epoch_directory(number), the only epoch of the
// tree. `mountpoint`: the mount point of the target on this node. Errors: EPROTO if the directory
// belongs to another epoch; those of the file system.
Status adopt_epoch(LockedEpochs& locked, const std::string& name, uint64_t number,
                   const std::string& mountpoint);

}  // namespace ppmr
