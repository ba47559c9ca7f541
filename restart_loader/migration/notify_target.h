// Carrying out at the target what the source's record says: by the coordinator, by a hook whose
// coordinator died, or by `ppmr migrate --recover`.
#pragma once

#include <chrono>

#include "restart_loader/migration/agent_client.h"
#include "restart_loader/records/record_store.h"

namespace ppmr {

// Tells the target of a record that is aborted, or committed with all its tasks dead, and notes
// that it knows. Errors: of the way there, after `patience`; or the target's reason.
Status notify_target(const RecordStore& store, AgentClient& agent, const OwnershipRecord& record,
                     std::chrono::milliseconds patience);

}  // namespace ppmr
