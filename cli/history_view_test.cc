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
  EXPECT_DOUBLE_EQ(would_move.downtime_s, 1) << "it went on before the rehearsal ended";
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
