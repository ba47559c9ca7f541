#include "migration/relay/connections_of_tree.h"

#include <gtest/gtest.h>

#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;

OwnershipRecord record_in(MigrationState state) {
  OwnershipRecord record;
  record.begin(1);
  record.trees.emplace_back();
  take_to(record, state);
  return record;
}

bool goes_on(MigrationState state, TreePhase phase) {
  OwnershipRecord record = record_in(state);
  record.trees[0].phase = phase;
  return goes_on_here(record, record.trees[0]);
}

TEST(ConnectionsOfTree, AreGivenBackWhenTheTreeCertainlyGoesOnHere) {
  EXPECT_TRUE(goes_on(kAborted, TreePhase::kStopped));
  EXPECT_TRUE(goes_on(kDumping, TreePhase::kDumping)) << "its CRIU ended before it held the tree";
}

TEST(ConnectionsOfTree, StayAsCriuLeftThemWhileTheTreeMayMove) {
  for (const auto state : {kDumping, kFrozen, kSealed, kCommitted, kFinished}) {
    EXPECT_FALSE(goes_on(state, TreePhase::kStopped)) << to_string(state);
  }
}

TEST(ConnectionsOfTree, OfACopyOrARehearsalAreGivenBackInEveryState) {
  for (const bool is_copy : {true, false}) {
    OwnershipRecord record = record_in(kSealed);
    record.trees[0].phase = TreePhase::kHeld;
    record.plan.original_goes_on = is_copy;
    record.plan.is_rehearsal = !is_copy;
    EXPECT_TRUE(goes_on_here(record, record.trees[0]));
  }
}

}  // namespace
}  // namespace ppmr
