// The failures that a reading of an earlier version found. Each strikes at every step of a
// migration. The README describes them, and names the tests of those that need real processes.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/simulator/world.h"

namespace ppmr::simulator {
namespace {

constexpr uint64_t kSteps = 260;  // as many as the longest migration without faults takes

using Endings = std::map<std::string, uint64_t>;

// Plays one migration for each step. The first fault strikes at that step, each further fault
// `apart` steps after the one before.
Endings play_at_each_step(const std::vector<Fault> &faults, const Scenario &pattern,
                          uint64_t apart = 30) {
  Endings endings;
  for (uint64_t step = 0; step < kSteps; ++step) {
    Scenario scenario = pattern;
    scenario.seed = step + 1;
    for (size_t i = 0; i < faults.size(); ++i) {
      scenario.faults.emplace_back(step + i * apart, faults[i]);
    }
    const Verdict verdict = play(scenario);
    EXPECT_EQ(verdict.violation, "") << "step " << step;
    ++endings[verdict.ending];
  }
  return endings;
}

uint64_t count(const Endings &endings, const std::string &beginning) {
  uint64_t found = 0;
  for (const auto &[ending, times] : endings) {
    if (ending.starts_with(beginning)) found += times;
  }
  return found;
}

Scenario post_copy() { return {.plan = {.may_run = MayRun::kDecided}}; }

TEST(Cases, ServiceThatSystemdStartsAgainExistsOnce) {
  const Scenario unit{.plan = {}, .has_unit = true};
  EXPECT_GT(count(play_at_each_step({}, unit), "moved"), 0u);
  for (const Fault fault : {Fault::kKillCoordinator, Fault::kPowerLossAtSource,
                            Fault::kKillSourceDaemon, Fault::kPowerLossAtTarget}) {
    (void)play_at_each_step({fault}, unit);
  }
}

TEST(Cases, StoppedTasksStayStoppedWhenTheirCriuDiesInPostCopy) {
  const Endings endings = play_at_each_step({Fault::kKillSourceCriu}, post_copy());
  EXPECT_GT(count(endings, "moved"), 0u);
  EXPECT_GT(count(endings, "stayed"), 0u);
  EXPECT_EQ(count(endings, "lost"), 0u);
}

TEST(Cases, SourceThatLosesPowerHandsOverToATargetThatIsReady) {
  const Endings endings = play_at_each_step({Fault::kPowerLossAtSource}, {});
  EXPECT_GT(count(endings, "moved"), 0u);
}

TEST(Cases, TargetThatRestartsAfterItsVoteCostsNoTreeBeforeTheDecision) {
  const Endings endings =
      play_at_each_step({Fault::kStopCoordinator, Fault::kPowerLossAtTarget}, {}, 1);
  EXPECT_GT(count(endings, "stayed"), 0u);
}

TEST(Cases, TargetWhoseDiskIsFullAtTheDecisionIsAskedAgain) {
  const Endings endings = play_at_each_step({Fault::kFillTargetDisk}, {});
  EXPECT_GT(count(endings, "moved"), 0u);
  EXPECT_EQ(count(endings, "lost"), 0u);
}

TEST(Cases, TargetThatRestartsWhileMemoryArrivesIsNoSuccess) {
  const Endings endings = play_at_each_step({Fault::kPowerLossAtTarget}, post_copy());
  EXPECT_GT(count(endings, "lost"), 0u);
  EXPECT_GT(count(endings, "stayed"), 0u);
}

TEST(Cases, NothingOfAnEarlierBootIsTouched) {
  const Endings endings =
      play_at_each_step({Fault::kPowerLossAtSource, Fault::kPowerLossAtTarget}, {.trees = 2});
  EXPECT_GT(endings.size(), 1u);
}

TEST(Cases, CoordinatorThatHangsHoldsNothingForEver) {
  const Endings endings = play_at_each_step({Fault::kStopCoordinator}, {});
  EXPECT_GT(count(endings, "stayed") + count(endings, "moved"), 0u);
  EXPECT_EQ(count(endings, "lost"), 0u);
}

TEST(Cases, ClockThatIsSetCostsNothing) {
  const Endings endings = play_at_each_step({Fault::kStepClock, Fault::kStepClock}, {});
  EXPECT_GT(count(endings, "moved"), 0u);
  EXPECT_EQ(count(endings, "lost"), 0u);
}

TEST(Cases, RecordsOfAnEarlierVersionAreSettled) {
  for (const Fault fault : {Fault::kUpgradeSource, Fault::kUpgradeTarget}) {
    const Endings endings = play_at_each_step({fault}, {});
    EXPECT_GT(count(endings, "moved"), 0u) << to_string(fault);
    EXPECT_GT(count(endings, "stayed"), 0u) << to_string(fault);
  }
}

TEST(Cases, InterruptionAfterTheDecisionChangesNothing) {
  const Endings endings = play_at_each_step({Fault::kInterruptCoordinator}, {});
  EXPECT_EQ(count(endings, "moved") + count(endings, "stayed"), kSteps);
  EXPECT_GT(count(endings, "moved"), 0u);
}

TEST(Cases, LossOfOneTreeOfSeveralIsReportedAlone) {
  Scenario three = post_copy();
  three.trees = 3;
  const Endings endings =
      play_at_each_step({Fault::kKillTargetCriu, Fault::kKillSourceDaemon}, three, 10);
  EXPECT_GT(endings.size(), 1u);
}

TEST(Cases, NodesThatShareAStateDirectoryLeaveEachOthersRecordsAlone) {
  const Scenario shared{.plan = {}, .shares_state = true};
  for (const Fault fault : {Fault::kKillCoordinator, Fault::kPowerLossAtSource}) {
    EXPECT_GT(count(play_at_each_step({fault}, shared), "moved"), 0u) << to_string(fault);
  }
}

}  // namespace
}  // namespace ppmr::simulator
