#include "migration/relay/target_driver.h"

#include <algorithm>

#include "base/clock.h"
#include "migration/relay/durable_step.h"
#include "migration/relay/source_driver.h"

namespace ppmr {

Result<TargetStep> take_target_step(const RecordStore& store, const std::string& id,
                                    const TargetEvent& event, TargetFacts facts) {
  return take_durable_step<TargetStep>(
      store, id, MigrationRole::kTarget, [&](const OwnershipRecord& record) {
        facts.now_ns = realtime_ns();
        facts.home = home_of(record);
        facts.supervised = facts.home == Home::kThisBoot && is_supervised(record);
        return target_step(record, facts, event);
      });
}

bool is_supervised(const OwnershipRecord& record) {
  const bool begins = record.state() == MigrationState::kRestoring;
  return std::all_of(record.trees.begin(), record.trees.end(), [&](const TreeRecord& tree) {
    const bool is_being_started = begins && tree.supervisor.pid == 0;
    return tree.phase == TreePhase::kComplete || is_being_started || is_alive(tree.supervisor);
  });
}

}  // namespace ppmr
