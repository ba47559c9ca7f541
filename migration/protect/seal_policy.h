// Decides which epoch counts if there are several partners: the newest one that enough of them
// keep. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "migration/epochs/epoch_state.h"

namespace ppmr {

enum class SealPolicy {
  kAll,     // every partner has the epoch, or a later one
  kQuorum,  // more than half of them
  kAny,     // one of them
};

// Errors: EINVAL for a text that is not "all", "quorum" or "any".
Result<SealPolicy> parse_seal_policy(const std::string& text);

// Returns how many of `partners` partners must keep an epoch so that it counts.
size_t needed_partners(SealPolicy policy, size_t partners);

// `kept`: the newest epoch of each partner; its number is 0 if there is none. Returns the position
// in `kept` of the epoch that counts: enough partners have it or a later one. Its number is 0 if no
// epoch counts yet. `kept` must not be empty.
size_t find_sealed(SealPolicy policy, const std::vector<SealedEpoch>& kept);

}  // namespace ppmr
