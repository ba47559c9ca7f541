#include "cli/history_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/history_command.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using enum MigrationState;
constexpr int64_t kSecond = 1'000'000'000;

OwnershipRecord moved_away() {
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  record.peer = "node-b";
  take_to(record, kFinished, 10 * kSecond, 14 * kSecond);
  record.trees.resize(1);
  record.trees[0].root = 4711;
  record.trees[0].name = "worker";
  record.trees[0].freeze_began_ns = 11 * kSecond;
  record.trees[0].running_ns = 11 * kSecond + kSecond / 2;
  return record;
}

TEST(HistoryView, MovedProcessStoodStillFromItsFreezeUntilItRanAtTheTarget) {
  const auto past = describe_migration(moved_away(), "node-a");
  EXPECT_EQ(past.from, "node-a");
  EXPECT_EQ(past.to, "node-b");
  EXPECT_EQ(past.processes, "4711 worker");
  EXPECT_EQ(past.result, "moved");
  EXPECT_DOUBLE_EQ(past.downtime_s, 0.5);
  EXPECT_FALSE(has_failed(past));
}

TEST(HistoryView, CopyOfAProtectedProcessIsNoMove) {
  auto record = moved_away();
  record.trees[0].protected_as = copy_name("db");
  EXPECT_EQ(describe_migration(record, "node-a").result, "copied");
  record.trees[0].protected_as = "db";
  EXPECT_EQ(describe_migration(record, "node-a").result, "moved");
}

TEST(HistoryView, LongestDowntimeOfSeveralProcessesCounts) {
  auto record = moved_away();
  record.trees.push_back(record.trees[0]);
  record.trees[1].running_ns += kSecond;
  const auto past = describe_migration(record, "node-a");
  EXPECT_DOUBLE_EQ(past.downtime_s, 1.5);
  EXPECT_EQ(past.processes, "4711 worker and 1 more");
}

TEST(HistoryView, AbortedMigrationStoodStillUntilTheAbort) {
  auto record = moved_away();
  take_to(record, kAborted, 10 * kSecond, 13 * kSecond);
  record.error = "the target's disk is full";
  record.trees[0].running_ns = 0;
  const auto past = describe_migration(record, "node-a");
  EXPECT_EQ(past.result, "stayed");
  EXPECT_DOUBLE_EQ(past.downtime_s, 2);
  EXPECT_TRUE(has_failed(past));
  EXPECT_NE(history_text({past}).find("stayed: the target's disk is full\n"), std::string::npos);
}

TEST(HistoryView, RehearsalIsNoMove) {
  auto record = moved_away();
  record.plan.is_rehearsal = true;
  take_to(record, kAborted, 10 * kSecond, 13 * kSecond);
  record.trees[0].running_ns = 0;
  record.trees[0].goes_on_ns = 12 * kSecond;
  const auto would_move = describe_migration(record, "node-a");
  EXPECT_EQ(would_move.result, "would move");
  EXPECT_FALSE(has_failed(would_move));
  EXPECT_DOUBLE_EQ(would_move.downtime_s, 1) << "the process went on before the rehearsal ended";
  record.error = "no restore";
  const auto would_stay = describe_migration(record, "node-a");
  EXPECT_EQ(would_stay.result, "would stay");
  EXPECT_TRUE(has_failed(would_stay));
}

TEST(HistoryView, RecordOfTheTargetNamesTheSourceAndHasNoDowntime) {
  auto record = moved_away();
  record.role = MigrationRole::kTarget;
  record.peer = "tls-psk node-a";
  record.trees[0].freeze_began_ns = 0;
  const auto past = describe_migration(record, "node-b");
  EXPECT_EQ(past.from, "node-a");
  EXPECT_EQ(past.to, "node-b");
  EXPECT_LT(past.downtime_s, 0);
}

TEST(HistoryView, UnfinishedMigrationIsOpen) {
  auto record = moved_away();
  take_to(record, kCommitted);
  record.trees[0].running_ns = 0;
  EXPECT_EQ(describe_migration(record, "node-a").result, "OPEN");
  EXPECT_TRUE(has_failed(describe_migration(record, "node-a")));
}

TEST(HistoryView, NamesWithControlCharactersAreEscaped) {
  auto record = moved_away();
  record.trees[0].name = "\033[2Jevil\n\x7f\xff";
  record.error = "line\nfeed";
  const std::string text = history_text({describe_migration(record, "node-a")});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7f));
}

TEST(HistoryView, LineBeginsWithTheDigitsThatTimelineTakes) {
  const std::string text = history_text({describe_migration(moved_away(), "node-a")});
  EXPECT_NE(text.find("\naaaaaaaa  "), std::string::npos) << text;
}

TEST(HistoryView, ColumnsAreAligned) {
  auto longer = moved_away();
  longer.trees[0].name = "a-longer-name";
  const std::string text = history_text(
      {describe_migration(moved_away(), "node-a"), describe_migration(longer, "node-a")});
  std::vector<size_t> columns;
  for (size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
    columns.push_back(text.find(" ms  moved", at) - at);
  }
  ASSERT_EQ(columns.size(), 2u);
  EXPECT_LT(columns[0], text.size());
  EXPECT_EQ(columns[0], columns[1]);
}

EpochState kept_epoch() {
  EpochState kept;
  kept.name = "db";
  kept.peer = "tls-psk node-a";
  kept.tree.root = 4711;
  kept.tree.program = "red\x1bis";
  kept.newest = {.number = 13,
                 .frozen_ns = 100 * kSecond,
                 .pause_ms = 31,
                 .bytes = 1 << 30,
                 .arrived_bytes = 1 << 20};
  return kept;
}

TEST(HistoryView, PartnerShowsTheNewestEpochThatItKeeps) {
  const auto process = describe_protected(kept_epoch(), std::nullopt, "node-b", 138 * kSecond);
  ASSERT_TRUE(process);
  const std::string text = protected_text({*process});
  for (const char* part : {"db", "node-a", "node-b", "4711 red\\u001bis", "13", "38.0 s", "31 ms",
                           "1.0 GiB", "1.0 MiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  const auto shown = protected_json(*process);
  EXPECT_EQ(shown.at("role"), "target");
  EXPECT_EQ(shown.at("age_ms"), 38'000);
  EXPECT_EQ(shown.at("sent_bytes"), 1 << 20);
}

TEST(HistoryView, CopyIsCalledACopy) {
  EpochState kept = kept_epoch();
  kept.is_copy = true;
  const auto process = describe_protected(kept, kRestoring, "node-b", 0);
  ASSERT_TRUE(process);
  EXPECT_NE(protected_text({*process}).find("db (copy)"), std::string::npos);
  EXPECT_EQ(protected_json(*process).at("copy"), true);
}

TEST(HistoryView, ProcessThatWasTakenOverIsNotProtectedAnyMore) {
  EXPECT_FALSE(describe_protected(kept_epoch(), kFinished, "node-b", 0));
  EXPECT_TRUE(describe_protected(kept_epoch(), kAborted, "node-b", 0));
}

TEST(HistoryView, ProcessWithoutACompleteEpochHasNoAge) {
  EpochState first = kept_epoch();
  first.newest = {};
  const auto process = describe_protected(first, std::nullopt, "node-b", 138 * kSecond);
  EXPECT_EQ(process->age_ms, 0);
  EXPECT_NE(protected_text({*process}).find("none"), std::string::npos);
}

TEST(HistoryView, SourceShowsWhatLeavesThroughItsMounts) {
  const nlohmann::json status = {{"peers", {{{"name", "node-b"}}}},
                                 {"protected",
                                  {{{"name", "db"},
                                    {"pid", 4711},
                                    {"program", "redis"},
                                    {"epoch", 13},
                                    {"age_ms", 38'000},
                                    {"pause_ms", 31},
                                    {"bytes", 1 << 30},
                                    {"sent_bytes", 1 << 20}}}}};
  const auto processes = protected_through(status, "node-a");
  ASSERT_EQ(processes.size(), 1u);
  EXPECT_EQ(processes[0].from, "node-a");
  EXPECT_EQ(processes[0].to, "node-b");
  EXPECT_EQ(processes[0].epoch, 13u);
  EXPECT_EQ(protected_json(processes[0]).at("role"), "source");
}

TEST(HistoryView, FieldsOfTheWrongTypeInAReplyCountAsMissing) {
  EXPECT_TRUE(protected_through({{"peers", 7}}, "node-a").empty());
  const auto processes = protected_through({{"protected", {{{"pid", "x"}}}}}, "node-a");
  ASSERT_EQ(processes.size(), 1u);
  EXPECT_EQ(processes[0].pid, 0);
  EXPECT_EQ(processes[0].to, "?");
}

TEST(HistoryCommand, DurationsHaveUnits) {
  EXPECT_EQ(parse_duration("90")->count(), 90);
  EXPECT_EQ(parse_duration("2h")->count(), 7200);
  EXPECT_EQ(parse_duration("7d")->count(), 7 * 86400);
  for (const char* wrong : {"", "h", "-1h", "1.5h", "1w", "99999999999999999999d"}) {
    EXPECT_FALSE(parse_duration(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace ppmr
