// Tests how an agent handles records of migrations: the record of a move that an earlier agent
// began (MoveOfAnEarlierAgent), and the records of nodes that are on their way to this host
// (AbortArrival).
#include "jobs/agent/evacuation.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_directory.h"
#include "migration/records/record_store.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{20};

class AbortArrival : public testing::Test {
 protected:
  AbortArrival() {
    options_.state_directory = directory_.path();
    node_.spec.job = "0123abcd";
    node_.expected = true;
  }
  RecordStore store() const { return *RecordStore::open(directory_.path()); }

  // Begins a migration to this host.
  void begin(const std::string& container, MigrationState state = kRestoring,
             const ProcessIdentity& supervisor = {}) {
    OwnershipRecord record;
    record.id = id_ = random_migration_id();
    record.role = MigrationRole::kTarget;
    record.endpoint = nlohmann::json::object();
    record.trees.resize(1);
    record.trees[0].checkpoint = "job-17";
    record.trees[0].container = {.name = container, .bundle = "/run/bundle", .created = ""};
    record.trees[0].supervisor = supervisor;
    const auto created = store().create(std::move(record));
    ASSERT_TRUE(created) << created.error().message;
    for (const MigrationState next : {kReady, kRunning, kFinished}) {
      if (state == kRestoring) break;
      ASSERT_TRUE(advance(store(), id_, MigrationRole::kTarget, next));
      if (next == state) break;
    }
  }
  MigrationState state() const { return store().read(id_, MigrationRole::kTarget)->state(); }

  const TestDirectory directory_;
  std::string id_;
  EvacuationOptions options_;
  HostNode node_;
};

class MoveOfAnEarlierAgent : public AbortArrival {
 protected:
  MoveOfAnEarlierAgent() {
    options_.program = "/bin/false";  // in place of ppmr migrate --recover
    node_.migration = random_migration_id();
  }
  OwnershipRecord record(const ProcessIdentity& coordinator = {}) const {
    OwnershipRecord record;
    record.id = node_.migration;
    record.endpoint = nlohmann::json::object();
    record.coordinator = coordinator;
    record.trees.resize(1);
    record.trees[0].checkpoint = "job-17";
    return record;
  }
  void advance(std::initializer_list<MigrationState> states, bool notified) const {
    for (const MigrationState state : states) {
      const auto moved = ppmr::advance(store(), node_.migration, MigrationRole::kSource, state,
                                       [&](OwnershipRecord& latest) -> Status {
                                         latest.peer_notified = notified;
                                         return {};
                                       });
      ASSERT_TRUE(moved) << moved.error().message;
    }
  }
};

TEST_F(MoveOfAnEarlierAgent, ThatWasNotStartedLeavesNoRecord) {
  node_.migration = "";
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kStayed);
  EXPECT_TRUE(store().list()->empty());
}

TEST_F(MoveOfAnEarlierAgent, ThatHasNotBegunStaysAndCannotBeginAnyMore) {
  const MoveReport report = move_result(options_, node_);
  EXPECT_EQ(report.result, MoveResult::kStayed) << report.error;
  EXPECT_EQ(report.error, "the migration did not begin");
  const auto late = store().create(record());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().errno_value, EEXIST);
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kStayed) << "idempotent";
}

TEST_F(MoveOfAnEarlierAgent, IsOpenWhileItsCoordinatorLives) {
  ASSERT_TRUE(store().create(record(identify_self())));
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kOpen);
  advance({kDumping, kFrozen, kSealed, kCommitted, kFinished}, true);
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kOpen);
}

TEST_F(MoveOfAnEarlierAgent, HasTheResultOfItsRecord) {
  ASSERT_TRUE(store().create(record()));
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kOpen);
  advance({kDumping, kFrozen, kSealed, kCommitted}, false);
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kOpen);
  advance({kFinished}, true);
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kMoved);
}

TEST_F(MoveOfAnEarlierAgent, OfAnotherNodeDoesNotCount) {
  OwnershipRecord other = record();
  other.id = random_migration_id();
  ASSERT_TRUE(store().create(other));
  EXPECT_EQ(move_result(options_, node_).result, MoveResult::kStayed);
  EXPECT_EQ(store().read(other.id, MigrationRole::kSource)->state(), kPreparing);
}

TEST_F(AbortArrival, RestoreThatHasNotVotedIsAborted) {
  begin(node_.spec.container());
  const Status aborted = abort_arrival(options_, node_, kPatience);
  EXPECT_TRUE(aborted) << aborted.error().message;
  EXPECT_EQ(state(), kAborted);
  EXPECT_TRUE(abort_arrival(options_, node_, kPatience));  // a second call succeeds, too
}

// The source may have lost power, and then it never decides.
TEST_F(AbortArrival, RestoreThatHasVotedIsDiscarded) {
  begin(node_.spec.container(), kReady);
  const Status aborted = abort_arrival(options_, node_, kPatience);
  EXPECT_TRUE(aborted) << aborted.error().message;
  EXPECT_EQ(state(), kAborted);
}

TEST_F(AbortArrival, RestoreThatIsDecidedIsNotAborted) {
  begin(node_.spec.container(), kRunning, identify_self());
  const Status aborted = abort_arrival(options_, node_, kPatience);
  ASSERT_FALSE(aborted);
  EXPECT_EQ(aborted.error().errno_value, EBUSY);
  EXPECT_EQ(state(), kRunning);
}

TEST_F(AbortArrival, NodeHasArrivedWhenItsOwnMigrationIsDecided) {
  const auto arrived = [&](int patience_s) {
    return has_arrived(options_, node_, std::chrono::seconds(patience_s));
  };
  EXPECT_FALSE(arrived(0));
  begin(node_.spec.container(), kFinished);  // an earlier move of the node to this host
  node_.migration = random_migration_id();
  EXPECT_FALSE(arrived(0));
  for (const MigrationState state : {kRestoring, kReady, kRunning, kFinished}) {
    begin(node_.spec.container(), state);
    node_.migration = id_;
    EXPECT_EQ(arrived(0), state == kRunning || state == kFinished) << to_string(state);
    EXPECT_FALSE(arrived(60)) << "the source may still report it";
  }
}

TEST_F(AbortArrival, DecidedRestoreWhoseSupervisorHasGivenUpIsNoObstacle) {
  begin(node_.spec.container(), kRunning);
  const Status aborted = abort_arrival(options_, node_, kPatience);
  EXPECT_TRUE(aborted) << aborted.error().message;
}

TEST_F(AbortArrival, ReturnsOnlyWhenTheSupervisorHasEnded) {
  begin(node_.spec.container(), kRestoring, identify_self());
  const Status aborted = abort_arrival(options_, node_, kPatience);
  ASSERT_FALSE(aborted);
  EXPECT_EQ(aborted.error().errno_value, EBUSY);
  EXPECT_EQ(state(), kAborted);
}

// The copy of the node may be held here, so the node must not be removed.
TEST_F(AbortArrival, FailsOnlyForAnUnreadableRecordThatMayBeOfThisNode) {
  const auto spoil = [&] {
    std::ofstream(store().path_of(id_, MigrationRole::kTarget) + "/99.json") << "{";
  };
  begin("ppmr-0123abcd-7");
  spoil();
  EXPECT_TRUE(abort_arrival(options_, node_, kPatience)) << "it is of another node";
  begin(node_.spec.container());
  spoil();
  EXPECT_FALSE(abort_arrival(options_, node_, kPatience));
  ASSERT_EQ(store().set_unreadable_aside().size(), 2u);
  const Status aside = abort_arrival(options_, node_, kPatience);
  ASSERT_FALSE(aside);
  EXPECT_NE(aside.error().message.find("unreadable-" + id_), std::string::npos);
}

TEST_F(AbortArrival, FinishedMigrationsAndMigrationsOfOtherNodesStayUnchanged) {
  begin(node_.spec.container(), kFinished);
  EXPECT_TRUE(abort_arrival(options_, node_, kPatience));
  begin("ppmr-0123abcd-7");
  EXPECT_TRUE(abort_arrival(options_, node_, kPatience));
  EXPECT_EQ(state(), kRestoring);
}

}  // namespace
}  // namespace ppmr
