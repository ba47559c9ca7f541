// An epoch that leaves the memory of its partner, and comes back on another node: the directory of
// the epoch, with the state of its tree in it.
#pragma once

#include <cstdint>
#include <string>

#include "migration/epochs/epoch_store.h"

namespace ppmr {

// Writes the state into the directory of the epoch, as if that epoch were the only one. Whoever
// copies the directory then holds the lock of the tree, or keeps epochs from being sealed. Errors:
// ENOENT: the epoch is not kept; of the file system.
Status note_state_of(const LockedEpochs& locked, uint64_t number);

// Returns the state in a directory that was brought back. Errors: EPROTO; of the file system.
Result<EpochState> read_noted_state(const std::string& directory);

// Makes a directory that was brought back, locked.epoch_directory(number), the only epoch of the
// tree. `mountpoint`: of the target here. Errors: EPROTO: the directory is not that of this epoch;
// of the file system.
Status adopt_epoch(LockedEpochs& locked, const std::string& name, uint64_t number,
                   const std::string& mountpoint);

}  // namespace ppmr
