#include "migration/relay/unit_step.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;

OwnershipRecord in(MigrationState state, MigrationRole role, bool enabled = true) {
  OwnershipRecord record;
  record.role = role;
  record.unit.name = "web.service";
  record.unit.enabled = enabled;
  record.trees.resize(1);
  record.trees[0].root = 40;
  take_to(record, state, 1, 2);
  return record;
}

TEST(SourceUnit, IsHeldUntilTheMigrationIsOver) {
  for (const MigrationState state : {kPreparing, kDumping, kFrozen, kSealed, kCommitted}) {
    for (const bool same_boot : {false, true}) {
      EXPECT_EQ(source_unit_step(in(state, MigrationRole::kSource), same_boot),
                SourceUnitStep::kHold)
          << to_string(state);
    }
  }
}

TEST(SourceUnit, IsRetiredWhenItHasLeftEvenAfterARestartOfTheNode) {
  for (const bool same_boot : {false, true}) {
    EXPECT_EQ(source_unit_step(in(kFinished, MigrationRole::kSource), same_boot),
              SourceUnitStep::kRetire);
  }
}

TEST(SourceUnit, IsAsBeforeAfterAnAbortAndStartsOnlyIfTheBootWouldHaveStartedIt) {
  EXPECT_EQ(source_unit_step(in(kAborted, MigrationRole::kSource), true), SourceUnitStep::kRestore);
  EXPECT_EQ(source_unit_step(in(kAborted, MigrationRole::kSource), false),
            SourceUnitStep::kRestoreAndStart);
  EXPECT_EQ(source_unit_step(in(kAborted, MigrationRole::kSource, false), false),
            SourceUnitStep::kRestore);
}

GuestStep guest(MigrationState state, TreePhase phase, bool attached, bool supervised) {
  OwnershipRecord record = in(state, MigrationRole::kTarget);
  record.trees[0].phase = phase;
  return guest_step(record, attached, supervised);
}

TEST(UnitGuest, AttachesBeforeTheProcessesRunAndAdoptsThemWhenTheyHaveNoSupervisor) {
  EXPECT_EQ(guest(kRestoring, TreePhase::kWaiting, false, true), GuestStep::kWait);
  EXPECT_EQ(guest(kReady, TreePhase::kReady, false, true), GuestStep::kAttach);
  EXPECT_EQ(guest(kReady, TreePhase::kReady, true, true), GuestStep::kWait);
  EXPECT_EQ(guest(kRunning, TreePhase::kRunning, true, true), GuestStep::kWait);
  EXPECT_EQ(guest(kFinished, TreePhase::kComplete, true, true), GuestStep::kWait);
  EXPECT_EQ(guest(kFinished, TreePhase::kComplete, false, false), GuestStep::kAttach);
  EXPECT_EQ(guest(kFinished, TreePhase::kComplete, true, false), GuestStep::kAdopt);
}

TEST(UnitGuest, EndsWhenTheProcessesDoNotCome) {
  EXPECT_EQ(guest(kAborted, TreePhase::kReady, true, true), GuestStep::kEnd);
  OwnershipRecord lost = in(kRunning, MigrationRole::kTarget);
  lost.trees[0].lost = "the pager ended";
  EXPECT_EQ(guest_step(lost, true, true), GuestStep::kEnd);
}

}  // namespace
}  // namespace ppmr
