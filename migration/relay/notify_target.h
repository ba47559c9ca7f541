// Sends the outcome in the source's record to the target. Three callers use it: the coordinator, a
// hook whose coordinator has died, and `ppmr migrate --recover`.
#pragma once

#include <chrono>

#include "migration/records/record_store.h"
#include "migration/relay/agent_client.h"

namespace ppmr {

// `record` must be aborted, or committed with all tasks dead. On success the source's record notes
// that the target was notified. Errors: the target's refusal; those of the connection, after
// trying for `patience`; those of RecordStore::change().
Status notify_target(const RecordStore& store, AgentClient& agent, const OwnershipRecord& record,
                     std::chrono::milliseconds patience);

}  // namespace ppmr
