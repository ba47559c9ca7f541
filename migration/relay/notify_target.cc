#include "migration/relay/notify_target.h"

namespace ppmr {

Status notify_target(const RecordStore& store, AgentClient& agent, const OwnershipRecord& record,
                     std::chrono::milliseconds patience) {
  const bool aborted = record.state() == MigrationState::kAborted;
  const auto decided = aborted ? MigrationState::kAborted : MigrationState::kRunning;
  const auto notified = agent.insist(
      {{"op", "decide"}, {"id", record.id}, {"state", to_string(decided)}, {"error", record.error}},
      patience);
  // A target without a record received no `prepare` request and has nothing to undo.
  if (!notified && !(aborted && notified.error().errno_value == ENOENT))
    return failure(notified.error());
  auto noted = store.change(record.id, record.role, [](OwnershipRecord& latest) -> Status {
    latest.peer_notified = true;
    const bool committed = latest.state() == MigrationState::kCommitted;
    return committed ? latest.move_to(MigrationState::kFinished) : Status{};
  });
  if (!noted) return failure(noted.error());
  return {};
}

}  // namespace ppmr
