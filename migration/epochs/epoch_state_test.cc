#include "migration/epochs/epoch_state.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ppmr {
namespace {

using enum MigrationState;

EpochState some_state() {
  EpochState state;
  state.name = "db";
  state.peer = "tls-psk one";
  state.mountpoint = "/mnt/in";
  state.tree = {"node", "boot", 17, 4711, "redis"};
  state.run = std::string(32, 'a');
  state.newest = {.number = 3,
                  .frozen_ns = 5,
                  .pause_ms = 20,
                  .bytes = 4096,
                  .arrived_bytes = 1,
                  .memory_end = 8192};
  state.criu_options = {"--tcp-close"};
  return state;
}

TEST(EpochState, NamesAreSafeInPaths) {
  for (const char* name : {"db", "redis-17", "a.b", "web@1", "A_1"}) {
    EXPECT_TRUE(is_protection_name(name)) << name;
  }
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "a b", "a+b", "a\n", "\xff"}) {
    EXPECT_FALSE(is_protection_name(name)) << name;
  }
  EXPECT_FALSE(is_protection_name(std::string(65, 'n')));
}

TEST(EpochState, CopyHasANameOfItsOwnAndOneEpoch) {
  EpochState state = some_state();
  state.older = {SealedEpoch{.number = 2}};
  state.takeover = std::string(32, 'f');
  state.first_partner = "two";
  const EpochState copy = copy_of(state, state.older[0], std::string(32, 'c'));
  EXPECT_EQ(copy.name, "db@copy");
  EXPECT_TRUE(is_copy_name(copy.name));
  EXPECT_FALSE(is_copy_name(state.name));
  EXPECT_EQ(copy.newest.number, 2u);
  EXPECT_TRUE(copy.older.empty());
  EXPECT_EQ(copy.takeover, "");
  EXPECT_EQ(copy.first_partner, "");
  EXPECT_EQ(copy.tree, state.tree);
  EXPECT_TRUE(copy.is_copy);
  const auto read = parse_epoch_state(to_json(copy));
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->is_copy);
  nlohmann::json misnamed = to_json(copy);
  misnamed["name"] = "db";
  EXPECT_FALSE(parse_epoch_state(misnamed));
}

TEST(EpochState, CopyHasNoSourceThatATakeoverCouldEnd) {
  const EpochState state = some_state();
  const EpochState copy = copy_of(state, state.newest, state.run);
  EXPECT_TRUE(check_has_source(state));
  const Status refused = check_has_source(copy);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, EPERM);
  EXPECT_NE(refused.error().message.find("ppmr takeover db --copy"), std::string::npos);
  EXPECT_EQ(check_copy(copy, 0, std::nullopt, std::nullopt).error().errno_value, EPERM);
}

TEST(EpochState, NothingIsProtectedUnderTheNameOfACopy) {
  EXPECT_TRUE(check_protected_name("db"));
  EXPECT_TRUE(check_protected_name("db@copying"));
  EXPECT_EQ(check_protected_name("db@copy").error().errno_value, EINVAL);
  EXPECT_EQ(check_protected_name(".db").error().errno_value, EINVAL);
}

TEST(EpochState, CopyIsAbandonedUnlessItRunsOrIsRestored) {
  const EpochState state = some_state();
  const EpochState copy = copy_of(state, state.newest, state.run);
  EXPECT_TRUE(is_abandoned_copy(copy, std::nullopt)) << "its command was killed";
  EXPECT_TRUE(is_abandoned_copy(copy, kAborted));
  for (const auto needed : {kRestoring, kReady, kRunning, kFinished}) {
    EXPECT_FALSE(is_abandoned_copy(copy, needed));
  }
  EXPECT_FALSE(is_abandoned_copy(state, std::nullopt));
}

TEST(EpochState, CopyIsMadeOfWhatCanRunTwice) {
  const EpochState state = some_state();
  EXPECT_TRUE(check_copy(state, 0, std::nullopt, std::nullopt));
  EXPECT_EQ(check_copy(state, 2, std::nullopt, std::nullopt).error().errno_value, ENOENT);
  EpochState unit = some_state();
  unit.manager.unit.name = "db.service";
  EXPECT_EQ(check_copy(unit, 0, std::nullopt, std::nullopt).error().errno_value, EPERM);
  EpochState container = some_state();
  container.manager.container.name = "db";
  EXPECT_TRUE(check_copy(container, 0, std::nullopt, std::nullopt));
  EpochState node = some_state();
  node.rolls_back = true;
  EXPECT_EQ(check_copy(node, 0, std::nullopt, std::nullopt).error().errno_value, EPERM);
  EpochState longest = some_state();
  longest.name = std::string(64, 'n');
  EXPECT_EQ(check_copy(longest, 0, std::nullopt, std::nullopt).error().errno_value, EINVAL);
}

TEST(EpochState, CopyReplacesOnlyACopyThatIsOver) {
  const EpochState state = some_state();
  EpochState copy = copy_of(state, state.newest, state.run);
  EXPECT_TRUE(check_copy(state, 0, copy, std::nullopt)) << "its command was killed";
  EXPECT_TRUE(check_copy(state, 0, copy, kFinished));
  EXPECT_EQ(check_copy(state, 0, copy, kRestoring).error().errno_value, EBUSY);
  copy.tree.root = 18;
  EXPECT_TRUE(check_copy(state, 0, copy, std::nullopt)) << "of an earlier process";
  copy.is_copy = false;  // an older version protected a process under this name
  EXPECT_TRUE(check_copy(state, 0, copy, kFinished));
  EXPECT_EQ(check_copy(state, 0, copy, std::nullopt).error().errno_value, EEXIST);
}

TEST(EpochState, AgeSaysHowUncertainItIs) {
  constexpr int64_t kMs = 1'000'000;
  SealedEpoch epoch{.number = 1, .frozen_ns = 1000 * kMs, .clock_uncertainty_ns = 2 * kMs};
  EXPECT_EQ(age_text(epoch, 5000 * kMs), "4.0 s old");
  EXPECT_EQ(age_text(epoch, 1010 * kMs), "10 ms old (+-2.0 ms)");
  EXPECT_EQ(age_of(epoch, 900 * kMs).count(), 0) << "the clock was set back";
  epoch.clock_uncertainty_ns = -1;
  EXPECT_EQ(age_text(epoch, 5000 * kMs), "4.0 s old by the clock of its source");
}

TEST(EpochState, EpochOfAnOlderVersionHasAnUnknownClock) {
  auto packed = to_json(some_state().newest);
  EXPECT_EQ(packed.erase("clock_uncertainty_ns"), 1u);
  EXPECT_EQ(parse_sealed_epoch(packed).clock_uncertainty_ns, -1);
}

TEST(EpochState, CheckpointMatchesOnlyItsOwnName) {
  const std::string checkpoint = epoch_checkpoint("db", std::string(32, 'a'), 7);
  EXPECT_TRUE(is_epoch_checkpoint(checkpoint, "db"));
  EXPECT_TRUE(is_epoch_checkpoint(checkpoint + ".memory", "db"));
  EXPECT_FALSE(is_epoch_checkpoint(checkpoint, "d"));
  EXPECT_FALSE(is_epoch_checkpoint("db-2+aaaaaaaa+7", "db"));
}

TEST(EpochState, IsReadAsItWasWritten) {
  EpochState state = some_state();
  state.takeover = std::string(32, '0');
  state.rolls_back = true;
  state.first_partner = "two";
  state.older = {{.number = 2, .frozen_ns = 4}, {.number = 1}};
  state.manager.unit = {.name = "web.service", .journal_sockets = {7, 8}, .enabled = true};
  state.manager.container = {"job", "/bundles/job", "today"};
  const auto read = parse_epoch_state(to_json(state));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(to_json(*read), to_json(state));
}

TEST(EpochState, OlderVersionsHaveNoManager) {
  nlohmann::json packed = to_json(some_state());
  packed.erase("manager");
  const auto read = parse_epoch_state(packed);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->manager.unit.name + read->manager.container.name, "");
}

// A partner hands these names to systemctl and runc.
TEST(TreeManager, RefusesInvalidNamesAndTooManySockets) {
  TreeManager manager;
  manager.unit.name = "--now.service x";
  EXPECT_FALSE(parse_tree_manager(to_json(manager)));
  manager.unit.name = "web.service";
  EXPECT_TRUE(parse_tree_manager(to_json(manager)));
  manager.unit.journal_sockets.resize(kJournalSocketsMax + 1);
  EXPECT_FALSE(parse_tree_manager(to_json(manager)));
  manager = {.container = {"../job", "/bundles/job", ""}, .unit = {}};
  EXPECT_FALSE(parse_tree_manager(to_json(manager)));
  manager.container = {"job", "bundles/job", ""};
  EXPECT_FALSE(parse_tree_manager(to_json(manager)));
}

TEST(TreeManager, RefusesAManagerThatIsNotAnObject) {
  for (const char* text : {"[]", "null", "7", "\"web.service\"", "true"}) {
    const auto parsed = parse_tree_manager(nlohmann::json::parse(text));
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().errno_value, EPROTO) << text;
  }
  nlohmann::json packed = to_json(some_state());
  packed["manager"] = nlohmann::json::array();
  EXPECT_FALSE(parse_epoch_state(packed));
}

TEST(EpochState, RefusesWhatPpmrHasNotWritten) {
  for (const char* field : {"name", "peer", "tree", "run", "newest", "takeover"}) {
    nlohmann::json packed = to_json(some_state());
    packed.erase(field);
    EXPECT_EQ(parse_epoch_state(packed).error().errno_value, EPROTO) << field;
  }
  nlohmann::json packed = to_json(some_state());
  packed["name"] = "../x";
  EXPECT_FALSE(parse_epoch_state(packed));
  packed = to_json(some_state());
  packed["run"] = "short";
  EXPECT_FALSE(parse_epoch_state(packed));
}

TEST(JudgeSource, MayGoOnUntilTheTakeoverIsDecided) {
  EXPECT_EQ(judge_source(std::nullopt), SourceMay::kGoOn);
  EXPECT_EQ(judge_source(kAborted), SourceMay::kGoOn);
  EXPECT_EQ(judge_source(kRestoring), SourceMay::kGoOnAfterAbort);
  EXPECT_EQ(judge_source(kReady), SourceMay::kGoOnAfterAbort);
  EXPECT_EQ(judge_source(kRunning), SourceMay::kNotRun);
  EXPECT_EQ(judge_source(kFinished), SourceMay::kNotRun);
}

// A takeover that was aborted, or never decided, would end the source otherwise.
TEST(JudgeWithoutRecord, OnlyACompletedTakeoverHasReplacedTheSource) {
  EpochState state = some_state();
  state.takeover = std::string(32, 'e');
  for (const bool is_lost : {false, true}) {
    EXPECT_FALSE(judge_without_record(state, is_lost)) << is_lost;
  }
  state.completed_takeover = std::string(32, 'd');  // of the process that had the name before
  EXPECT_FALSE(judge_without_record(state, true));
  state.completed_takeover = state.takeover;
  EXPECT_EQ(judge_without_record(state, false), kFinished);
  const auto read = parse_epoch_state(to_json(state));
  ASSERT_TRUE(read);
  EXPECT_EQ(judge_without_record(*read, true), kFinished);
}

TEST(JudgeWithoutRecord, LeaderDecidesAboutATreeThatRollsBack) {
  EpochState state = some_state();
  state.takeover = std::string(32, 'e');
  state.rolls_back = true;
  EXPECT_EQ(judge_without_record(state, true), kFinished);
  EXPECT_FALSE(judge_without_record(state, false)) << "a supervisor may act on the record";
}

TEST(CheckTakeover, NeedsOneCompleteEpochAndNoEarlierTakeover) {
  EpochState state = some_state();
  EXPECT_TRUE(check_takeover(state, std::nullopt));
  EXPECT_TRUE(check_takeover(state, kAborted));
  EXPECT_TRUE(check_takeover(state, kReady)) << "the one in progress goes on";
  EXPECT_EQ(check_takeover(state, kRunning).error().errno_value, EALREADY);
  state.newest = {};
  EXPECT_EQ(check_takeover(state, std::nullopt).error().errno_value, ENOENT);
}

TEST(CheckPrecedence, OnlyTheFirstPartnerTakesOverAlone) {
  EpochState state = some_state();
  EXPECT_TRUE(check_precedence(state, true, ""));
  EXPECT_TRUE(check_precedence(state, false, ""));
  state.first_partner = "two";
  EXPECT_FALSE(check_precedence(state, true, ""));
  EXPECT_FALSE(check_precedence(state, true, "two")) << "the first partner could take over later";
}

TEST(CheckPrecedence, APersonVouchesForTheFirstPartnerByName) {
  EpochState state = some_state();
  EXPECT_FALSE(check_precedence(state, false, "two")) << "there is no other partner";
  state.first_partner = "two";
  EXPECT_FALSE(check_precedence(state, false, ""));
  EXPECT_FALSE(check_precedence(state, false, "three"));
  EXPECT_TRUE(check_precedence(state, false, "two"));
}

TEST(CheckSource, NameBelongsToOneTreeOfOneSource) {
  const EpochState state = some_state();
  EXPECT_TRUE(check_source(state, std::nullopt, state.peer, state.tree));
  EXPECT_TRUE(check_source(state, std::nullopt, "tls-psk renamed", state.tree));
  ProtectedTree elsewhere = state.tree;
  elsewhere.node_id = "two";
  EXPECT_EQ(check_source(state, std::nullopt, "tls-psk two", elsewhere).error().errno_value,
            EACCES);
  ProtectedTree other = state.tree;
  other.root_start_time = 1;
  EXPECT_EQ(check_source(state, std::nullopt, state.peer, other).error().errno_value, EEXIST);
  EXPECT_TRUE(check_source(state, kFinished, state.peer, other)) << "the first one runs here";
  EpochState empty = state;
  empty.newest = {};
  EXPECT_TRUE(check_source(empty, std::nullopt, state.peer, other));
}

TEST(CheckReplaceable, TreeThatStillReadsItsEpochsIsNotReplaced) {
  EpochState state = some_state();
  for (const auto takeover :
       {std::optional<MigrationState>(), std::optional(kAborted), std::optional(kFinished)}) {
    EXPECT_TRUE(check_replaceable(state, takeover));
  }
  EXPECT_EQ(check_replaceable(state, kRunning).error().errno_value, EBUSY);
}

TEST(CheckSequence, PagesOfAnEpochFollowThePagesOfTheNewestKeptOne) {
  const EpochState state = some_state();
  EXPECT_TRUE(check_sequence(state, state.run, 4, state.newest.memory_end));
  EXPECT_TRUE(check_sequence(state, state.run, 6, state.newest.memory_end)) << "one was not sent";
  EXPECT_EQ(check_sequence(state, state.run, 3, state.newest.memory_end).error().errno_value,
            ESTALE);
  EXPECT_EQ(check_sequence(state, state.run, 4, state.newest.memory_end + 4096).error().errno_value,
            ESTALE)
      << "pages are missing";
  EXPECT_EQ(check_sequence(state, std::string(32, 'b'), 4, 8192).error().errno_value, ESTALE);
  EXPECT_TRUE(check_sequence(state, std::string(32, 'b'), 4, 0)) << "all memory";
}

TEST(CheckLeader, EpochsOutliveARollback) {
  using enum MigrationState;
  EpochState state = some_state();
  EXPECT_EQ(check_leader(state, std::nullopt).error().errno_value, EEXIST)
      << "a protected process of the same name";
  state.rolls_back = true;
  for (const auto takeover : {std::optional<MigrationState>(), std::optional(kAborted),
                              std::optional(kRunning), std::optional(kFinished)}) {
    EXPECT_TRUE(check_leader(state, takeover));
    EXPECT_TRUE(check_takeover(state, takeover)) << "a second loss";
  }
  EXPECT_EQ(check_leader(state, kRestoring).error().errno_value, EBUSY);
  EXPECT_EQ(check_leader(state, kReady).error().errno_value, EBUSY);
}

PageIndex index_of(const std::vector<PageRange>& ranges) {
  PageIndex index;
  index.tasks.push_back({1, 1, ranges, 0});
  return index;
}

std::set<uint64_t> pages_of(const std::vector<PageRange>& ranges) {
  std::set<uint64_t> pages;
  for (const PageRange& range : ranges) {
    for (uint64_t page = 0; page < range.bytes(); page += kPageBytes) {
      EXPECT_TRUE(pages.insert(range.offset + page).second) << "listed twice";
    }
  }
  return pages;
}

TEST(StaleParts, AreWhatOnlyTheEarlierIndexRefersTo) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::set<uint64_t> before, after;
    PageIndex indexes[2];
    for (int which = 0; which < 2; ++which) {
      for (int task = 0; task < 2; ++task) {
        std::vector<PageRange> ranges;
        uint64_t address = 0;
        for (unsigned i = random() % 6; i > 0; --i) {
          const uint64_t bytes = (1 + random() % 4) * kPageBytes;
          const uint64_t offset = random() % 24 * kPageBytes;
          ranges.push_back({address, address + bytes, offset});
          address += bytes + kPageBytes;
          for (uint64_t at = offset; at < offset + bytes; at += kPageBytes) {
            (which == 0 ? before : after).insert(at);
          }
        }
        indexes[which].tasks.push_back({task + 1, task + 1, ranges, 0});
      }
    }
    std::set<uint64_t> expected;
    for (const uint64_t page : before) {
      if (!after.contains(page)) expected.insert(page);
    }
    EXPECT_EQ(pages_of(stale_parts(indexes[0], {indexes[1]})), expected) << "seed " << seed;
  }
}

TEST(KeptEpochs, OlderOnesEndWithTheOldestThatIsKept) {
  const auto numbers = [](const EpochState& state) {
    std::vector<uint64_t> numbers;
    for (const SealedEpoch& epoch : kept_epochs(state)) numbers.push_back(epoch.number);
    return numbers;
  };
  EpochState state;
  state.name = "db";
  EXPECT_TRUE(kept_epochs(state).empty());
  EXPECT_EQ(find_epoch(state, 0).error().errno_value, ENOENT);
  for (const uint64_t number : {1, 2, 3}) state = with_newest(state, {.number = number}, 1);
  EXPECT_EQ(numbers(state), (std::vector<uint64_t>{3, 2, 1}));
  state = with_newest(state, {.number = 4}, 3);
  EXPECT_EQ(numbers(state), (std::vector<uint64_t>{4, 3}));
  EXPECT_EQ(find_epoch(state, 0)->number, 4u);
  EXPECT_EQ(find_epoch(state, 3)->number, 3u);
  EXPECT_EQ(find_epoch(state, 2).error().message, "db has no epoch 2; kept are 4, 3");
  // Numbers that were not agreed on are used again.
  state = with_newest(state, {.number = 4, .frozen_ns = 7}, 3);
  EXPECT_EQ(numbers(state), (std::vector<uint64_t>{4, 3}));
  EXPECT_EQ(state.newest.frozen_ns, 7);
  forget_all_epochs(state);
  EXPECT_TRUE(kept_epochs(state).empty());
}

TEST(StaleParts, NothingIsStaleWithoutAnEarlierEpoch) {
  EXPECT_TRUE(stale_parts({}, {index_of({{0, 8192, 0}})}).empty());
}

}  // namespace
}  // namespace ppmr
