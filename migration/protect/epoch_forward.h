// Sends an epoch that this node keeps to another partner, without the pages that the partner
// already has. So `ppmr protect` captures a process once, however many nodes keep its epoch.
#pragma once

#include <chrono>

#include "migration/epochs/epoch_store.h"
#include "migration/protect/partner.h"

namespace ppmr {

struct ForwardOptions {
  uint64_t number = 0;  // of the epoch
  uint64_t oldest = 0;  // the partner forgets the epochs before it
  std::chrono::milliseconds seal_patience{120'000};
};

// Returns when the partner keeps the epoch, with the number of bytes of memory that were sent. May
// be repeated. `state`: the state of the tree in `epochs`, which must keep the epoch until the call
// returns. `mount`: the source mount that leads to the partner. Errors: ENOENT: this node does not
// keep the epoch; those of the file system; those of Partner.
Result<uint64_t> forward_epoch(const EpochStore& epochs, const EpochState& state, Partner& partner,
                               const MountEntry& mount, const ForwardOptions& options);
// Does the same, but reads the state and connects to the partner by itself.
Result<uint64_t> forward_epoch(const EpochStore& epochs, const std::string& name,
                               const PartnerMount& to, const ForwardOptions& options);

}  // namespace ppmr
