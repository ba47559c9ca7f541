// Sends an epoch that this node keeps to another partner: what that partner does not have of it.
// So a process is captured once, however many nodes keep its epoch.
#pragma once

#include <chrono>

#include "migration/epochs/epoch_store.h"
#include "migration/protect/partner.h"

namespace ppmr {

struct ForwardOptions {
  uint64_t number = 0;  // of the epoch
  uint64_t oldest = 0;  // the partner forgets those before it
  std::chrono::milliseconds seal_patience{120'000};
};

// Returns the bytes of memory that were sent, when the partner keeps the epoch. May be repeated.
// `state`: of the tree in `epochs`, where the epoch stays until this returns. `mount`: the source
// mount before the partner. Errors: ENOENT: this node does not keep it; of the file system; those
// of Partner.
Result<uint64_t> forward_epoch(const EpochStore& epochs, const EpochState& state, Partner& partner,
                               const MountEntry& mount, const ForwardOptions& options);
// As above, but reads the state and connects by itself, to forward one epoch.
Result<uint64_t> forward_epoch(const EpochStore& epochs, const std::string& name,
                               const PartnerMount& to, const ForwardOptions& options);

}  // namespace ppmr
