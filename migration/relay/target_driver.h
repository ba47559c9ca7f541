// Takes the steps of the protocol at the target: for the agent, the supervisors, the hooks and
// the settler.
#pragma once

#include <string>

#include "migration/protocol/target_protocol.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Takes one step, which is durable on return. Fills in the facts that follow from the record and
// from this node; the caller passes the others. Errors: those of target_step() and of the store.
Result<TargetStep> take_target_step(const RecordStore& store, const std::string& id,
                                    const TargetEvent& event, TargetFacts facts = {});

// Returns whether each tree that is not complete has a living supervisor, or one that is being
// started.
bool is_supervised(const OwnershipRecord& record);

}  // namespace ppmr
