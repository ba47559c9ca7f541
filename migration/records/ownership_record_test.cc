#include "migration/records/ownership_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;

OwnershipRecord record_of_two_trees() {
  OwnershipRecord record;
  record.id = random_migration_id();
  record.begin(1);
  record.peer = "there";
  record.endpoint = nlohmann::json::object();
  record.criu_options = {"--shell-job"};
  TreeRecord tree;
  tree.root = 17;
  tree.root_start_time = 4711;
  tree.name = "worker (1)";
  tree.checkpoint = "worker-17";
  tree.tasks = {{17, 1000}, {18, 1001}};
  tree.waiting_at = {0x7fff00001234, 0};
  tree.phase = TreePhase::kHeld;
  tree.expected_bytes = 100;
  tree.bytes = 99;
  tree.dump_began_ns = 2;
  tree.rounds = {{3, 60}, {4, 30}};
  tree.restore_began_ns = 5;
  tree.restored_ns = 6;
  record.trees = {tree, tree};
  record.trees[1].container = {"job", "/srv/job", "2026-01-02T03:04:05Z"};
  return record;
}

std::vector<MigrationState> all_states() {
  std::vector<MigrationState> states;
  for (size_t i = 0; i < kMigrationStateCount; ++i)
    states.push_back(static_cast<MigrationState>(i));
  return states;
}

TEST(OwnershipRecord, SurvivesConversionToJsonAndBack) {
  const OwnershipRecord record = record_of_two_trees();
  const auto back = parse_record(nlohmann::json(record));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(nlohmann::json(*back), nlohmann::json(record));
}

TEST(OwnershipRecord, KeepsTheNodeOfItsPeerIfItIsKnown) {
  OwnershipRecord record = record_of_two_trees();
  EXPECT_FALSE(nlohmann::json(record).contains("peer_node_id"));
  EXPECT_FALSE(nlohmann::json(record).contains("peer_state_directory"));
  record.peer_node_id = "f00d";
  record.peer_state_directory = "/var/lib/ppmr";
  const auto back = parse_record(nlohmann::json(record));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->peer_node_id, "f00d");
  EXPECT_EQ(back->peer_state_directory, "/var/lib/ppmr");
}

TEST(OwnershipRecord, PausesSurviveConversionAndOthersHaveNone) {
  OwnershipRecord record = record_of_two_trees();
  EXPECT_FALSE(nlohmann::json(record).contains("pauses"));
  record.pauses = {{2, 3}, {4, 5}};
  const auto back = parse_record(nlohmann::json(record));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(nlohmann::json(*back), nlohmann::json(record));
}

TEST(OwnershipRecord, UnitSurvivesConversionAndHasALimitedNumberOfSockets) {
  OwnershipRecord record = record_of_two_trees();
  EXPECT_FALSE(nlohmann::json(record).contains("unit"));
  record.unit = {"web.service", {17, 18}, true};
  const auto back = parse_record(nlohmann::json(record));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(nlohmann::json(*back), nlohmann::json(record));
  record.unit.journal_sockets.resize(kJournalSocketsMax + 1);
  EXPECT_FALSE(parse_record(nlohmann::json(record)));
}

TEST(OwnershipRecord, RecordOfAnOlderVersionHasNoTimesForATimeline) {
  nlohmann::json packed = record_of_two_trees();
  for (nlohmann::json& tree : packed["trees"]) {
    for (const char* field : {"expected_bytes", "bytes", "dump_began_ns", "rounds",
                              "restore_began_ns", "restored_ns"}) {
      EXPECT_EQ(tree.erase(field), 1u) << field;
    }
  }
  const auto back = parse_record(packed);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->trees[0].dump_began_ns, 0);
  EXPECT_TRUE(back->trees[0].rounds.empty());
}

TEST(OwnershipRecord, EveryStateHasADistinctName) {
  std::set<std::string> names;
  for (const MigrationState state : all_states()) {
    names.insert(to_string(state));
    EXPECT_EQ(parse_state(to_string(state)), state);
  }
  EXPECT_EQ(names.size(), kMigrationStateCount);
  EXPECT_FALSE(parse_state("sealing"));
}

// The table of docs/migration.md. Rows: the present state, columns: the next one; both in the order
// of MigrationState.
constexpr const char* kStepsOfSource[] = {
    // clang-format off
    // p d f s c r r r f a
    "  . + . . . . . . . +",  // preparing
    "  . . + . . . . . . +",  // dumping
    "  . . . + . . . . . +",  // frozen
    "  . . . . + . . . . +",  // sealed
    "  . . . . . . . . + .",  // committed
    "  . . . . . . . . . .",  // restoring
    "  . . . . . . . . . .",  // ready
    "  . . . . . . . . . .",  // running
    "  . . . . . . . . . .",  // finished
    "  . . . . . . . . . .",  // aborted
    // clang-format on
};
constexpr const char* kStepsOfTarget[] = {
    // clang-format off
    // p d f s c r r r f a
    "  . . . . . . . . . .",  // preparing
    "  . . . . . . . . . .",  // dumping
    "  . . . . . . . . . .",  // frozen
    "  . . . . . . . . . .",  // sealed
    "  . . . . . . . . . .",  // committed
    "  . . . . . . + . . +",  // restoring
    "  . . . . . . . + . +",  // ready
    "  . . . . . . . . + .",  // running
    "  . . . . . . . . . .",  // finished
    "  . . . . . . . . . .",  // aborted
    // clang-format on
};
static_assert(std::size(kStepsOfSource) == kMigrationStateCount);
static_assert(std::size(kStepsOfTarget) == kMigrationStateCount);

bool is_step(MigrationRole role, MigrationState from, MigrationState to) {
  const auto& table = role == MigrationRole::kSource ? kStepsOfSource : kStepsOfTarget;
  return table[static_cast<size_t>(from)][2 + 2 * static_cast<size_t>(to)] == '+';
}

bool has_state(MigrationRole role, MigrationState state) {
  const bool of_target = state == kRestoring || state == kReady || state == kRunning;
  return is_over(state) || (role == MigrationRole::kTarget) == of_target;
}

TEST(OwnershipRecord, EveryPairOfStatesIsAllowedOrRefusedAsInTheTable) {
  for (const MigrationRole role : {MigrationRole::kSource, MigrationRole::kTarget}) {
    for (const MigrationState from : all_states()) {
      for (const MigrationState to : all_states()) {
        SCOPED_TRACE(to_string(role, from) + " -> " + to_string(to));
        const bool allowed = is_step(role, from, to);
        EXPECT_EQ(may_change(role, from, to), allowed);
        if (!has_state(role, from)) continue;  // no record can be in it
        OwnershipRecord record = record_of_two_trees();
        record.role = role;
        take_to(record, from);
        const auto before = record.history();
        const Status moved = record.move_to(to, 9);
        EXPECT_EQ(moved.has_value(), allowed);
        EXPECT_EQ(record.state(), allowed ? to : from);
        if (!moved) {
          EXPECT_EQ(moved.error().errno_value, EPERM);
        }
        if (!moved) {
          EXPECT_EQ(record.history(), before);
        }
        if (moved) {
          EXPECT_EQ(record.history().back(), (StateChange{to, 9}));
        }
      }
    }
  }
}

TEST(OwnershipRecord, HistoryThatIsNoPathThroughTheStatesIsRefused) {
  using nlohmann::json;
  const json good = record_of_two_trees();
  const auto with = [&](const char* state, const char* history) {
    json record = good;
    record["state"] = state;
    record["history"] = json::parse(history);
    return parse_record(record).has_value();
  };
  EXPECT_TRUE(with("dumping", R"([["preparing", 1], ["dumping", 2]])"));
  EXPECT_FALSE(with("dumping", R"([["preparing", 1], ["dumping", 2], ["frozen", 3]])"));
  EXPECT_FALSE(with("dumping", R"([["dumping", 2]])"));
  EXPECT_FALSE(with("committed", R"([["preparing", 1], ["committed", 2]])"));
  EXPECT_FALSE(with("preparing", R"([["preparing", 1], ["preparing", 2]])"));
  EXPECT_FALSE(with("preparing", "[]"));
  EXPECT_FALSE(with("restoring", R"([["restoring", 1]])")) << "a state of the target";
  EXPECT_FALSE(with("sealing", R"([["preparing", 1], ["sealing", 2]])"));
}

TEST(OwnershipRecord, CommittedSourceCanOnlyFinishAndFinalStatesNeverChange) {
  for (const MigrationState to : all_states()) {
    EXPECT_EQ(may_change(MigrationRole::kSource, kCommitted, to), to == kFinished);
    for (const MigrationState over : {kFinished, kAborted}) {
      EXPECT_FALSE(may_change(MigrationRole::kSource, over, to));
      EXPECT_FALSE(may_change(MigrationRole::kTarget, over, to));
    }
  }
}

TEST(OwnershipRecord, SourceMayAbortUntilItCommitsAndTargetUntilItRunsTheProcesses) {
  for (const MigrationState from : {kPreparing, kDumping, kFrozen, kSealed}) {
    EXPECT_TRUE(may_change(MigrationRole::kSource, from, kAborted)) << to_string(from);
  }
  EXPECT_TRUE(may_change(MigrationRole::kTarget, kRestoring, kAborted));
  EXPECT_TRUE(may_change(MigrationRole::kTarget, kReady, kAborted));
  EXPECT_FALSE(may_change(MigrationRole::kTarget, kRunning, kAborted));
}

// At most one node runs the processes: the source before the commit, and then the target in the
// state `running`. The target reaches this state only from `ready`, its vote.
TEST(OwnershipRecord, TargetRunsOnlyProcessesForWhichItHasVoted) {
  for (const MigrationState from : all_states()) {
    if (from == kReady) continue;
    EXPECT_FALSE(may_change(MigrationRole::kTarget, from, kRunning)) << to_string(from);
  }
}

TEST(OwnershipRecord, RecordWithAMissingFieldOrAWrongTypeIsRefused) {
  const nlohmann::json good = record_of_two_trees();
  for (const auto& [key, value] : good.items()) {
    if (key == "owner" || key == "format") continue;  // derived, or has a default
    nlohmann::json damaged = good;
    damaged.erase(key);
    EXPECT_FALSE(parse_record(damaged)) << key << " is missing";
    damaged = good;
    damaged[key] = value.is_object() ? nlohmann::json(1) : nlohmann::json{{"another", "type"}};
    EXPECT_FALSE(parse_record(damaged)) << key << " is of another type";
  }
  EXPECT_FALSE(parse_record(nlohmann::json::parse("{", nullptr, false)));
  EXPECT_FALSE(parse_record(nlohmann::json::array()));
}

TEST(OwnershipRecord, AbortDoesNotContinueTasksThatTheirUserHadStopped) {
  TreeRecord tree;
  tree.tasks = {{17, 1}, {18, 1}, {19, 1}};
  tree.stopped_before = {{18, 1}, {19, 2}};
  EXPECT_EQ(tasks_to_resume(tree), (std::vector<ProcessIdentity>{{17, 1}, {19, 1}}));
}

// A target of version 0.1 that had received the decision, but not yet the request to run.
TEST(OwnershipRecord, RecordOfTheFirstFormatIsUpgraded) {
  OwnershipRecord record = record_of_two_trees();
  record.role = MigrationRole::kTarget;
  take_to(record, kReady);
  nlohmann::json old = record;
  for (const char* field : {"format", "node_id", "incarnation", "confirmations", "tasks_resumed"}) {
    old.erase(field);
  }
  for (nlohmann::json& tree : old["trees"]) {
    tree.erase("lost");
    tree.erase("stopped_before");
  }
  old["state"] = "owned";
  old["history"].push_back({"owned", 9});
  const auto upgraded = parse_record(old);
  ASSERT_TRUE(upgraded) << upgraded.error().message;
  EXPECT_EQ(upgraded->state(), kReady);
  old["format"] = 99;
  const auto newer = parse_record(old);
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().errno_value, EOPNOTSUPP);
  EXPECT_NE(newer.error().message.find("update ppmr"), std::string::npos);
}

TEST(OwnershipRecord, ContradictoryPlanIsRefused) {
  const nlohmann::json good = record_of_two_trees();
  const auto with = [&](const MovePlan& plan, bool container) {
    nlohmann::json record = good;
    record["plan"] = plan;
    if (!container) record["trees"][1]["container"] = record["trees"][0]["container"];
    return parse_record(record).has_value();
  };
  EXPECT_TRUE(with({}, true));
  const MovePlan post_copy{.may_run = MayRun::kDecided};
  EXPECT_TRUE(with(post_copy, true));
  MovePlan post_copy_of_a_copy = post_copy;
  post_copy_of_a_copy.original_goes_on = true;
  EXPECT_FALSE(with(post_copy_of_a_copy, false));
  const MovePlan copy{.memory = MemoryPath::kImages, .original_goes_on = true};
  EXPECT_TRUE(with(copy, false));
  EXPECT_FALSE(with(copy, true)) << "of a container";
}

TEST(OwnershipRecord, RehearsalNeverReachesAStateInWhichItsCopyMayRun) {
  OwnershipRecord source;
  source.plan.is_rehearsal = true;
  take_to(source, kSealed);
  EXPECT_FALSE(source.move_to(kCommitted));
  EXPECT_TRUE(source.move_to(kAborted));
  OwnershipRecord target;
  target.role = MigrationRole::kTarget;
  target.plan.is_rehearsal = true;
  take_to(target, kReady);
  EXPECT_FALSE(target.move_to(kRunning));
  EXPECT_TRUE(target.move_to(kAborted));
  EXPECT_STREQ(target.owner(), "source");

  OwnershipRecord decided = record_of_two_trees();
  decided.plan = {};
  take_to(decided, kCommitted);
  nlohmann::json forged = decided;
  ASSERT_TRUE(parse_record(forged));
  forged["plan"]["rehearsal"] = true;
  EXPECT_FALSE(parse_record(forged)) << "a record on the disk or of a peer";
}

TEST(OwnershipRecord, PlanNamesTheFilesOfATree) {
  OwnershipRecord record = record_of_two_trees();
  record.mountpoint = "/mnt";
  const TreeRecord& tree = record.trees[0];
  EXPECT_EQ(images_path(record, tree), "/mnt/worker-17");
  EXPECT_EQ(memory_path(record, tree), "/mnt/worker-17.memory");
  record.plan = {.memory = MemoryPath::kImages, .may_run = MayRun::kInPlace};
  EXPECT_EQ(images_path(record, tree), "/mnt/worker-17");
  EXPECT_EQ(memory_path(record, tree), "");
}

TEST(OwnershipRecord, NamesTheTreesThatAreLost) {
  OwnershipRecord record = record_of_two_trees();
  EXPECT_EQ(record.losses(), "");
  record.trees[0].root = 17;
  record.trees[0].name = "redis";
  record.trees[0].lost = "its pager ended";
  EXPECT_EQ(record.losses(), "process 17 (redis) is lost: its pager ended");
  record.trees[1].root = 18;
  record.trees[1].name = "worker";
  record.trees[1].lost = "its node ended";
  EXPECT_EQ(
      record.losses(),
      "process 17 (redis) is lost: its pager ended; process 18 (worker) is lost: its node ended");
}

TEST(OwnershipRecord, RefusesNamesThatArePaths) {
  const std::string too_long(250, 'n');  // as the name of the memory
  for (const char* name : {"", ".", "..", "a/b", "../x", ".hidden", too_long.c_str()}) {
    nlohmann::json record = record_of_two_trees();
    record["trees"][0]["checkpoint"] = name;
    EXPECT_FALSE(parse_record(record)) << name;
  }
  for (const auto& [name, bundle] : {std::pair{"../job", "/srv"}, {"job", "srv"}, {"", "/srv"}}) {
    nlohmann::json record = record_of_two_trees();
    record["trees"][1]["container"]["name"] = name;
    record["trees"][1]["container"]["bundle"] = bundle;
    EXPECT_FALSE(parse_record(record)) << name << " in " << bundle;
  }
  for (const char* id : {"", "../../etc/passwd", "0123", "ABCDEF00000000000000000000000000"}) {
    nlohmann::json record = record_of_two_trees();
    record["id"] = id;
    EXPECT_FALSE(parse_record(record)) << id;
  }
}

}  // namespace
}  // namespace ppmr
