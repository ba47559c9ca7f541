// Tests the steps of both halves: the table of docs/migration.md, and the cases in which a simpler
// protocol loses or doubles a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "migration/protocol/source_protocol.h"
#include "migration/protocol/target_protocol.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kIncarnation = "boot-1/daemon-1";

OwnershipRecord source_in(MigrationState state, const MovePlan& plan = {}) {
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  record.role = MigrationRole::kSource;
  record.incarnation = kIncarnation;
  record.plan = plan;
  record.trees.resize(1);
  record.trees[0].root = 17;
  if (state >= kDumping) record.trees[0].phase = TreePhase::kDumping;
  if (state >= kFrozen) record.trees[0].phase = TreePhase::kStopped;
  if (state >= kSealed) record.trees[0].phase = TreePhase::kSealed;
  take_to(record, state);
  return record;
}

OwnershipRecord target_in(MigrationState state, const MovePlan& plan = {}) {
  OwnershipRecord record = source_in(kPreparing, plan);
  record.role = MigrationRole::kTarget;
  if (state == kReady || state == kRunning) record.trees[0].phase = TreePhase::kReady;
  take_to(record, state);
  return record;
}

source_event::TargetSays says(MigrationState state, const std::string& error = "") {
  return {{.has_record = true, .state = state, .incarnation = kIncarnation, .error = error}};
}

const SourceFacts kHeld{.tasks_held = true};
const SourceFacts kDead{.coordinator_works = false};
const SourceFacts kRestarted{.home = Home::kEarlierBoot, .coordinator_works = false};
const TargetFacts kHere{.incarnation = kIncarnation};
const TargetFacts kTargetRestarted{.home = Home::kEarlierBoot, .incarnation = "boot-2/daemon-1"};

std::string outcome(const Result<SourceStep>& step, MigrationState before) {
  if (!step) return "refused";
  std::string text = step->record.state() != before ? to_string(step->record.state()) : "";
  for (const SourceAction action : step->actions) {
    text += (text.empty() ? "" : ", ") + std::string(to_string(action));
  }
  return text;
}

std::string outcome(const Result<TargetStep>& step, MigrationState before) {
  if (!step) return "refused";
  std::string text = step->record.state() != before ? to_string(step->record.state()) : "";
  for (const TargetAction action : step->actions) {
    text += (text.empty() ? "" : ", ") + std::string(to_string(action));
  }
  return text;
}

// Returns the table, with one line for each state and event that has an effect in this boot or
// after a restart.
std::string table() {
  std::ostringstream text;
  const std::vector<std::pair<const char*, SourceEvent>> of_source = {
      {"prepared", source_event::Prepared{"node2", kIncarnation}},
      {"tree held", source_event::Held{}},
      {"tree stopped", source_event::Stopped{}},
      {"tree sealed", source_event::Sealed{}},
      {"vote confirmed", source_event::Confirmed{kIncarnation}},
      {"target is ready", says(kReady)},
      {"target runs", says(kRunning)},
      {"target has aborted", says(kAborted)},
      {"tasks are dead", source_event::TasksDead{}},
      {"give up", source_event::GiveUp{"why"}},
      {"look, coordinator dead", source_event::Look{}}};
  text << "| source | event | then | after a restart of the node |\n| --- | --- | --- | --- |\n";
  for (const MigrationState state :
       {kPreparing, kDumping, kFrozen, kSealed, kCommitted, kAborted}) {
    for (const auto& [name, event] : of_source) {
      OwnershipRecord record = source_in(state);
      if (std::holds_alternative<source_event::Stopped>(event) && state == kDumping) {
        record.trees[0].phase = TreePhase::kHeld;
      }
      const bool looks = std::holds_alternative<source_event::Look>(event);
      const auto now = outcome(source_step(record, looks ? kDead : kHeld, event), state);
      const auto restarted = outcome(source_step(record, kRestarted, event), state);
      const bool idle =
          (now == "refused" || now.empty()) &&
          (restarted == "refused" || restarted == "ask the target" || restarted.empty());
      if (idle && !looks) continue;
      text << "| " << to_string(state) << " | " << name << " | " << now << " | " << restarted
           << " |\n";
    }
  }
  const std::vector<std::pair<const char*, TargetEvent>> of_target = {
      {"tree ready", target_event::Ready{}},
      {"tree failed", target_event::Failed{.error = "why"}},
      {"asked for the vote", target_event::Vote{}},
      {"told: run", target_event::Run{}},
      {"told: aborted", target_event::Abort{"why"}},
      {"tree complete", target_event::Complete{}},
      {"look, no supervisor", target_event::Look{}}};
  text << "\n| target | event | then | after a restart of the node |\n| --- | --- | --- | --- |\n";
  for (const MigrationState state : {kRestoring, kReady, kRunning, kAborted}) {
    for (const auto& [name, event] : of_target) {
      const OwnershipRecord record = target_in(state);
      TargetFacts here = kHere;
      here.supervised = !std::holds_alternative<target_event::Look>(event);
      const auto step = target_step(record, here, event);
      const auto later = target_step(record, kTargetRestarted, event);
      auto now = outcome(step, state);
      if (step && step->record.confirmations > 0) now = "confirmed";
      const auto restarted = outcome(later, state);
      const bool idle =
          (now == "refused" || now.empty()) && (restarted == "refused" || restarted.empty());
      if (idle) continue;
      text << "| " << to_string(state) << " | " << name << " | " << now << " | " << restarted
           << " |\n";
    }
  }
  return text.str();
}

TEST(Protocol, MatchesTheTableOfTheDocument) {
  std::ifstream file("docs/migration.md");
  ASSERT_TRUE(file) << "run it with bazel test";
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(document.find(table()), std::string::npos) << "docs/migration.md must contain:\n\n"
                                                       << table();
}

TEST(Protocol, SourceThatWasRestartedHandsOverToATargetThatIsReady) {
  OwnershipRecord record = source_in(kSealed);
  const auto asks = source_step(record, kRestarted, source_event::Look{});
  ASSERT_TRUE(asks);
  EXPECT_THAT(asks->actions, ElementsAre(SourceAction::kAskTarget));
  EXPECT_EQ(asks->record.state(), kSealed) << "the target may have the only copy";
  const auto committed = source_step(record, kRestarted, says(kReady));
  ASSERT_TRUE(committed);
  EXPECT_EQ(committed->record.state(), kCommitted);
}

TEST(Protocol, SourceThatWasRestartedBeforeItsTreesWereStoppedDoesNotHandOver) {
  const auto step = source_step(source_in(kDumping), kRestarted, says(kReady));
  ASSERT_TRUE(step);
  EXPECT_EQ(step->record.state(), kAborted);
  EXPECT_THAT(step->record.trees[0].lost, HasSubstr("node was restarted"));
}

TEST(Protocol, AbortAfterARestartDoesNotClaimThatTheProcessesContinue) {
  const auto step = source_step(source_in(kSealed), kRestarted, says(kAborted, "no room"));
  ASSERT_TRUE(step);
  EXPECT_EQ(step->record.state(), kAborted);
  EXPECT_TRUE(step->record.has_losses());
  EXPECT_THAT(step->actions, IsEmpty()) << "nothing here can be resumed";
}

TEST(Protocol, TargetThatWasRestartedConfirmsNoVote) {
  const OwnershipRecord record = target_in(kReady);
  EXPECT_TRUE(target_step(record, kHere, target_event::Vote{}));
  const auto restarted = target_step(record, kTargetRestarted, target_event::Vote{});
  ASSERT_FALSE(restarted);
  EXPECT_EQ(restarted.error().errno_value, ESTALE);
  const auto daemon = target_step(record, {.incarnation = "boot-1/daemon-2"}, target_event::Vote{});
  ASSERT_FALSE(daemon) << "the same boot, but the daemon was restarted";
}

TEST(Protocol, VoteOfAnotherIncarnationDecidesNothing) {
  const auto step =
      source_step(source_in(kSealed), kHeld, source_event::Confirmed{"boot-2/daemon-1"});
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().errno_value, ESTALE);
}

TEST(Protocol, EveryConfirmationIsWritten) {
  const auto step = target_step(target_in(kReady), kHere, target_event::Vote{});
  ASSERT_TRUE(step);
  EXPECT_TRUE(step->changed) << "a full disk must show before the decision";
}

TEST(Protocol, TasksAreKilledBeforeTheTargetIsToldToRun) {
  const auto step = source_step(source_in(kSealed), kHeld, source_event::Confirmed{kIncarnation});
  ASSERT_TRUE(step);
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kKillTasks, SourceAction::kTellRun));
}

TEST(Protocol, PostCopyKeepsTheFrozenPagesUntilTheMemoryHasMoved) {
  const MovePlan post_copy{.may_run = MayRun::kDecided};
  SourceFacts facts = kHeld;
  facts.memory_needed = true;
  auto step =
      source_step(source_in(kSealed, post_copy), facts, source_event::Confirmed{kIncarnation});
  ASSERT_TRUE(step);
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kTellRun, SourceAction::kAwaitMemory));
  step = source_step(step->record, facts, says(kRunning));
  ASSERT_TRUE(step);
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kAwaitMemory));
  step = source_step(step->record, {}, source_event::Look{});
  ASSERT_TRUE(step);
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kKillTasks));
}

TEST(Protocol, TargetRestartedDuringTheFillReportsTheLoss) {
  OwnershipRecord running = target_in(kRunning);
  running.trees[0].phase = TreePhase::kRunning;
  const auto lost = target_step(running, kTargetRestarted, target_event::Look{});
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->record.state(), kFinished);
  EXPECT_TRUE(lost->record.has_losses());
  const auto step =
      source_step(source_in(kCommitted), {}, source_event::TargetSays{view_of(lost->record)});
  ASSERT_TRUE(step);
  EXPECT_TRUE(step->record.has_losses()) << "the source must not report a move";
}

TEST(Protocol, ReadyTargetAbortsOnlyIfItsCopyIsGone) {
  TargetFacts silent = kHere;
  silent.overdue = true;
  silent.supervised = false;
  const auto waits = target_step(target_in(kReady), silent, target_event::Look{});
  ASSERT_TRUE(waits);
  EXPECT_EQ(waits->record.state(), kReady);
  const auto failed =
      target_step(target_in(kReady), kHere, target_event::Failed{.error = "no restore"});
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->record.state(), kReady) << "the source may have decided";
  EXPECT_FALSE(target_step(failed->record, kHere, target_event::Vote{}));
  const auto gone = target_step(target_in(kReady), kTargetRestarted, target_event::Look{});
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->record.state(), kAborted);
}

const MovePlan kRehearsal{.is_rehearsal = true};

TEST(Protocol, RehearsalEndsWhereAMoveIsDecided) {
  const SourceFacts goes_on{.tasks_held = false};
  const auto step =
      source_step(source_in(kSealed, kRehearsal), goes_on, source_event::Confirmed{kIncarnation});
  ASSERT_TRUE(step) << step.error().message;
  EXPECT_EQ(step->record.state(), kAborted);
  EXPECT_EQ(step->record.first_error(), "") << "it has succeeded";
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kResumeTasks, SourceAction::kTellAborted));
}

TEST(Protocol, RehearsedTreeGoesOnAsSoonAsTheTargetHasAllOfIt) {
  EXPECT_EQ(source_verdict(source_in(kFrozen, kRehearsal), 0), HookVerdict::kHold);
  EXPECT_EQ(source_verdict(source_in(kSealed, kRehearsal), 0), HookVerdict::kStop);
  EXPECT_EQ(source_verdict(source_in(kSealed), 0), HookVerdict::kHold) << "a move";
  const MovePlan eager{
      .memory = MemoryPath::kImages, .may_run = MayRun::kInPlace, .is_rehearsal = true};
  EXPECT_EQ(source_verdict(source_in(kSealed, eager), 0), HookVerdict::kHold)
      << "CRIU compares the sizes of its files";
}

TEST(Protocol, RehearsalIsNeverRunAtTheTarget) {
  const OwnershipRecord ready = target_in(kReady, kRehearsal);
  EXPECT_TRUE(target_step(ready, kHere, target_event::Vote{}));
  EXPECT_FALSE(target_step(ready, kHere, target_event::Run{}));
  EXPECT_FALSE(target_step(ready, kHere, target_event::SourceIsGone{.run_here = true}));
  EXPECT_EQ(target_verdict(ready), HookVerdict::kHold);
}

TEST(Protocol, TargetOfARehearsalAbortsAlone) {
  const OwnershipRecord ready = target_in(kReady, kRehearsal);
  TargetFacts overdue = kHere;
  overdue.overdue = true;
  TargetFacts unsupervised = kHere;
  unsupervised.supervised = false;
  for (const TargetFacts& facts : {overdue, unsupervised}) {
    const auto step = target_step(ready, facts, target_event::Look{});
    ASSERT_TRUE(step);
    EXPECT_EQ(step->record.state(), kAborted);
    EXPECT_NE(step->record.first_error(), "");
  }
  const auto failed = target_step(ready, kHere, target_event::Failed{.error = "CRIU died"});
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->record.state(), kAborted);
}

TEST(Protocol, RehearsalIsNotHandedOverAfterARestart) {
  for (const MigrationState state : {kFrozen, kSealed}) {
    const auto step = source_step(source_in(state, kRehearsal), kRestarted, says(kReady));
    ASSERT_TRUE(step);
    EXPECT_EQ(step->record.state(), kAborted);
    EXPECT_FALSE(step->record.has_losses()) << "the rehearsal has lost nothing";
  }
}

TEST(Protocol, AnotherProgramAbortsForAHungCoordinator) {
  const auto step = source_step(source_in(kSealed), kDead, source_event::Look{});
  ASSERT_TRUE(step);
  EXPECT_EQ(step->record.state(), kAborted);
  EXPECT_THAT(step->actions, ElementsAre(SourceAction::kResumeTasks, SourceAction::kTellAborted));
  const auto late = source_step(step->record, kHeld, source_event::Confirmed{kIncarnation});
  EXPECT_FALSE(late) << "the coordinator goes on, and has lost";
}

TEST(Protocol, RecordOfAnotherNodeIsLeftAlone) {
  const auto source =
      source_step(source_in(kSealed), {.home = Home::kOtherNode}, source_event::Look{});
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().errno_value, EXDEV);
  EXPECT_FALSE(target_step(target_in(kReady), {.home = Home::kOtherNode}, target_event::Look{}));
}

TEST(Protocol, OperatorDecidesForANodeThatIsLostForGood) {
  const target_event::SourceIsGone run_here{.run_here = true};
  const auto runs = target_step(target_in(kReady), kHere, run_here);
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->record.state(), kRunning);
  EXPECT_FALSE(target_step(target_in(kReady), kTargetRestarted, run_here)) << "there is no copy";
  EXPECT_FALSE(target_step(target_in(kRestoring), kHere, run_here));
  const auto discarded = target_step(target_in(kReady), kHere, target_event::SourceIsGone{});
  ASSERT_TRUE(discarded);
  EXPECT_EQ(discarded->record.state(), kAborted);
  const auto ended = source_step(source_in(kCommitted), {}, source_event::TargetIsGone{});
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->record.has_losses());
  EXPECT_TRUE(ended->record.peer_notified);
  const auto stays = source_step(source_in(kSealed), {}, source_event::TargetIsGone{});
  ASSERT_TRUE(stays);
  EXPECT_EQ(stays->record.state(), kAborted);
  EXPECT_FALSE(stays->record.has_losses());
}

TEST(Protocol, OneLostTreeOfSeveralIsReportedAlone) {
  OwnershipRecord record = source_in(kCommitted);
  record.trees.resize(2);
  source_event::TargetSays event = says(kFinished);
  event.target.lost = {"", "its pager died"};
  const auto step = source_step(record, {}, event);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->record.trees[0].lost, "");
  EXPECT_EQ(step->record.trees[1].lost, "its pager died");
}

TEST(Protocol, SealedTreeThatIsNotStoppedYetIsAskedForAgain) {
  OwnershipRecord record = source_in(kDumping);
  record.trees[0].phase = TreePhase::kHeld;
  const auto early = source_step(record, {}, source_event::Sealed{});
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().errno_value, EAGAIN);
}

}  // namespace
}  // namespace ppmr
