// In a post-copy migration the source keeps the frozen tasks after the decision, because the target
// still reads their memory. A process must call needs_frozen_pages() before it kills the tasks.
#pragma once

#include <chrono>
#include <optional>

#include "migration/records/ownership_record.h"

namespace ppmr {

// Returns whether the target may still need the frozen pages of the tree. False: the target has all
// of them, or can get no more because the source's daemon has ended or its session with the target
// has failed. Also seals the memory if the coordinator could not. Takes up to a few seconds.
bool needs_frozen_pages(const OwnershipRecord& record, const TreeRecord& tree);

// Call after the decision. Until the tree's memory is sealed, its session then survives a peer that
// is silent for up to the hold limit. Does nothing if the source's daemon does not answer.
void wait_for_peer(const OwnershipRecord& record, const TreeRecord& tree);

// Calls wait_for_peer(), and blocks until needs_frozen_pages() is false. Also returns when the
// source's daemon has not answered for `silence_max`; then its session has failed.
void await_memory_moved(const OwnershipRecord& record, const TreeRecord& tree,
                        std::optional<std::chrono::milliseconds> silence_max = {});

}  // namespace ppmr
