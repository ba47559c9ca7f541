// The base class of the steps of the protocol at both nodes.
#pragma once

#include <string>

#include "migration/protocol/source_protocol.h"

namespace ppmr {

// The record that a step changes. `Facts`: SourceFacts or TargetFacts. Threads: one.
template <typename Facts>
class ProtocolStep {
 public:
  ProtocolStep(const OwnershipRecord& record, const Facts& facts)
      : record_(record), facts_(facts) {}

 protected:
  // Errors: EXDEV: the record belongs to another node.
  Status check_home() const {
    if (facts_.home != Home::kOtherNode) return {};
    return failure(EXDEV, "the record of migration " + record_.id + " belongs to another node");
  }

  bool node_was_restarted() const { return facts_.home == Home::kEarlierBoot; }

  Status move_to(MigrationState state) {
    changed_ = true;
    return record_.move_to(state, facts_.now_ns);
  }

  // Errors: EINVAL: the record has no such tree.
  Result<TreeRecord*> tree_at(size_t number) {
    if (number < record_.trees.size()) return &record_.trees[number];
    return failure(
        EINVAL, "the record of migration " + record_.id + " has no tree " + std::to_string(number));
  }

  OwnershipRecord record_;
  const Facts& facts_;
  bool changed_ = false;
};

}  // namespace ppmr
