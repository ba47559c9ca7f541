// A step of the protocol on the record of this node.
#pragma once

#include <string>
#include <utility>

#include "migration/records/record_store.h"

namespace ppmr {

// Takes one step, which is durable on return. `decide(record)` returns the step: a
// Result<SourceStep> or Result<TargetStep>. The function may call `decide` again with a newer
// record. It does not write a step that changes nothing. Errors: those of `decide` and of the
// store.
template <typename Step, typename Decide>
Result<Step> take_durable_step(const RecordStore& store, const std::string& id, MigrationRole role,
                               const Decide& decide) {
  constexpr int kUnchanged = EALREADY;
  Step taken;
  auto changed = store.change(id, role, [&](OwnershipRecord& record) -> Status {
    Result<Step> step = decide(record);
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

}  // namespace ppmr
