#include "restart_loader/migration/notify_target.h"

namespace ppmr {

Status notify_target(const RecordStore& store, AgentClient& agent, const OwnershipRecord& record,
                     std::chrono::milliseconds patience) {
  const bool aborted = record.state == MigrationState::kAborted;
  const auto decided = aborted ? MigrationState::kAborted : MigrationState::kRunning;
  const auto told = agent.insist(
      {{"op", "decide"}, {"id", record.id}, {"state", to_string(decided)}, {"error", record.error}},
      patience);
  // A target that was never asked to prepare has nothing to undo.
  if (!told && !(aborted && told.error().errno_value == ENOENT)) return failure(told.error());
  auto noted = store.change(record.id, record.role, [](OwnershipRecord& latest) -> Status {
    latest.peer_notified = true;
    if (latest.state == MigrationState::kCommitted) latest.state = MigrationState::kFinished;
    return {};
  });
  if (!noted) return failure(noted.error());
  return {};
}

}  // namespace ppmr
