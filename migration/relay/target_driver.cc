#include "migration/relay/target_driver.h"

#include <algorithm>

#include "base/clock.h"
#include "migration/relay/source_driver.h"

namespace ppmr {

constexpr int kUnchanged = EALREADY;

Result<TargetStep> take_target_step(const RecordStore& store, const std::string& id,
                                    const TargetEvent& event, TargetFacts facts) {
  TargetStep taken;
  auto changed = store.change(id, MigrationRole::kTarget, [&](OwnershipRecord& record) -> Status {
    facts.now_ns = realtime_ns();
    facts.home = home_of(record);
    facts.supervised = facts.home == Home::kThisBoot && is_supervised(record);
    auto step = target_step(record, facts, event);
    if (!step) return failure(step.error());
    taken = std::move(*step);
    if (!taken.changed) return failure(kUnchanged, "");
    record = taken.record;
    return {};
  });
  if (!changed && changed.error().errno_value != kUnchanged) return failure(changed.error());
  if (changed) taken.record = std::move(*changed);
  return taken;
}

bool is_supervised(const OwnershipRecord& record) {
  const bool begins = record.state() == MigrationState::kRestoring;
  return std::all_of(record.trees.begin(), record.trees.end(), [&](const TreeRecord& tree) {
    const bool is_being_started = begins && tree.supervisor.pid == 0;
    return tree.phase == TreePhase::kComplete || is_being_started || is_alive(tree.supervisor);
  });
}

}  // namespace ppmr
