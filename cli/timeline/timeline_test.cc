#include "cli/timeline/timeline.h"

#include <gtest/gtest.h>

#include <limits>

#include "migration/records/take_to.h"

namespace ppmr {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000'000'000;
constexpr int64_t ms(int64_t time_ms) { return kBegin + time_ms * 1'000'000; }

OwnershipRecord moved() {
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  record.peer = "node2";
  take_to(record, MigrationState::kFinished, kBegin, ms(150));
  TreeRecord tree;
  tree.root = 412;
  tree.name = "redis";
  tree.bytes = 1 << 20;
  tree.dump_began_ns = ms(10);
  tree.freeze_began_ns = ms(20);
  tree.held_ns = ms(60);
  tree.sealed_ns = ms(80);
  tree.restore_began_ns = ms(82);
  tree.restored_ns = ms(110);
  tree.running_ns = ms(120);
  tree.complete_ns = ms(200);
  record.trees = {tree};
  return record;
}

const TimelineBar* find(const Timeline& timeline, BarKind kind) {
  for (const TimelineRow& row : timeline.trees.at(0).rows) {
    for (const TimelineBar& bar : row.bars) {
      if (bar.kind == kind) return &bar;
    }
  }
  return nullptr;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Timeline, BarsStandAtTheTimesOfTheRecord) {
  const auto timeline = make_timeline(moved());
  ASSERT_TRUE(timeline) << timeline.error().message;
  const struct {
    BarKind kind;
    double begin_ms, end_ms;
  } expected[] = {{BarKind::kDump, 20, 60},       {BarKind::kTransfer, 20, 80},
                  {BarKind::kSeal, 60, 80},       {BarKind::kRestore, 82, 110},
                  {BarKind::kHandOver, 110, 120}, {BarKind::kStands, 20, 120},
                  {BarKind::kFill, 120, 200}};
  for (const auto& bar : expected) {
    const TimelineBar* drawn = find(*timeline, bar.kind);
    ASSERT_NE(drawn, nullptr) << label_of(bar.kind);
    EXPECT_DOUBLE_EQ(drawn->begin_ms, bar.begin_ms) << label_of(bar.kind);
    EXPECT_DOUBLE_EQ(drawn->end_ms, bar.end_ms) << label_of(bar.kind);
  }
  EXPECT_EQ(find(*timeline, BarKind::kStands)->note, "stands still 100 ms");
  EXPECT_EQ(find(*timeline, BarKind::kLiveCopy), nullptr);
  EXPECT_DOUBLE_EQ(timeline->length_ms, 200);
  EXPECT_EQ(timeline->title, "redis (412) to node2");
  EXPECT_EQ(timeline->subtitle.find("moved, downtime 100 ms, 1.0 MiB, "), 0u);
}

TEST(Timeline, EachPreCopyRoundHasABar) {
  OwnershipRecord record = moved();
  record.trees[0].rounds = {{ms(13), 100}, {ms(18), 20}};
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline);
  const TimelineRow& row = timeline->trees[0].rows.at(1);
  ASSERT_EQ(row.bars.size(), 2u);
  EXPECT_DOUBLE_EQ(row.bars[0].begin_ms, 10);
  EXPECT_DOUBLE_EQ(row.bars[1].begin_ms, 13);
  EXPECT_DOUBLE_EQ(row.bars[1].end_ms, 18);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kTransfer)->begin_ms, 10) << "from the first round on";
}

TEST(Timeline, AbortedMigrationStandsStillUntilTheAbort) {
  OwnershipRecord record = moved();
  take_to(record, MigrationState::kAborted, kBegin, ms(90));
  record.trees[0].restore_began_ns = record.trees[0].restored_ns = 0;
  record.trees[0].running_ns = record.trees[0].complete_ns = 0;
  record.trees[0].sealed_ns = ms(500);  // a thread recorded this time after the abort
  record.error = "the link failed";
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kStands)->end_ms, 90);
  const TimelineBar& last = timeline->trees[0].rows[0].bars.back();
  EXPECT_EQ(last.note, "at the source");
  EXPECT_EQ(find(*timeline, BarKind::kRestore), nullptr);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kSeal)->end_ms, 90);
  EXPECT_LT(timeline->length_ms, 100);
  EXPECT_EQ(timeline->subtitle.find("stayed: the link failed, "), 0u) << timeline->subtitle;
}

TEST(Timeline, RecordOfTheTargetShowsOnlyTheTargetsPart) {
  OwnershipRecord record = moved();
  record.role = MigrationRole::kTarget;
  TreeRecord& tree = record.trees[0];
  tree.dump_began_ns = tree.freeze_began_ns = tree.sealed_ns = tree.restored_ns = 0;
  tree.held_ns = ms(110);  // end of the restore
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline) << timeline.error().message;
  EXPECT_EQ(find(*timeline, BarKind::kDump), nullptr);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kRestore)->end_ms, 110);
  EXPECT_EQ(timeline->title, "redis (412) from node2");
}

TEST(Timeline, MigrationThatDumpedNothingHasNothingToDraw) {
  OwnershipRecord record = moved();
  record.trees[0] = TreeRecord{};
  const auto timeline = make_timeline(record);
  ASSERT_FALSE(timeline);
  EXPECT_EQ(timeline.error().errno_value, ENODATA);
}

TEST(Timeline, ImpossibleTimesAreNotDrawn) {
  OwnershipRecord record = moved();
  record.trees[0].complete_ns = std::numeric_limits<int64_t>::max();
  record.trees[0].restored_ns = std::numeric_limits<int64_t>::min();
  record.trees[0].sealed_ns = ms(30);  // another clock: this time is before the end of the dump
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline);
  EXPECT_EQ(find(*timeline, BarKind::kFill), nullptr);
  EXPECT_EQ(find(*timeline, BarKind::kSeal), nullptr);
  EXPECT_LT(timeline->length_ms, 1000);
}

TEST(Timeline, PauseOfTheRoundsHasABar) {
  OwnershipRecord record = moved();
  record.pauses = {{ms(14), ms(16)}};
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kPaused)->begin_ms, 14);
  EXPECT_DOUBLE_EQ(find(*timeline, BarKind::kPaused)->end_ms, 16);
}

TEST(Timeline, TicksAreRoundAndNotTooMany) {
  EXPECT_DOUBLE_EQ(tick_distance_ms(200, 10), 20);
  EXPECT_DOUBLE_EQ(tick_distance_ms(201, 10), 50);
  EXPECT_DOUBLE_EQ(tick_distance_ms(9.9, 10), 1);
  EXPECT_DOUBLE_EQ(tick_distance_ms(0, 10), 0.001);
}

TEST(Timeline, SvgEscapesNamesAndStaysInsideItsWidth) {
  OwnershipRecord record = moved();
  record.trees[0].name = "<a>&\"'\x1b";
  const std::string svg = timeline_svg(*make_timeline(record));
  EXPECT_EQ(svg.find("<a>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;a&gt;&amp;&quot;&#39;?"), std::string::npos);
  for (size_t at = svg.find("<rect x=\""); at != std::string::npos;
       at = svg.find("<rect x=\"", at + 1)) {
    const double x = std::stod(svg.substr(at + 9));
    const double width = std::stod(svg.substr(svg.find("width=\"", at) + 7));
    EXPECT_GE(x, 0);
    EXPECT_LE(x + width, 900) << svg.substr(at, 100);
  }
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(Timeline, SvgLeavesOutANoteThatWouldCoverAnotherBar) {
  OwnershipRecord record = moved();
  EXPECT_NE(timeline_svg(*make_timeline(record)).find(">at the target<"), std::string::npos);
  record.trees[0].freeze_began_ns = ms(1);
  record.trees[0].running_ns = ms(195);  // leaves too little room at the right
  const std::string svg = timeline_svg(*make_timeline(record));
  EXPECT_EQ(svg.find(">at the target<"), std::string::npos);
  EXPECT_NE(svg.find(">stands still 194 ms<"), std::string::npos);
}

TEST(Timeline, ManyTreesHaveOneRowEach) {
  OwnershipRecord record = moved();
  record.trees.resize(20, record.trees[0]);
  const auto timeline = make_timeline(record);
  ASSERT_TRUE(timeline);
  ASSERT_EQ(timeline->trees.size(), 20u);
  for (const TimelineTree& tree : timeline->trees) EXPECT_EQ(tree.rows.size(), 1u);
  EXPECT_EQ(count(timeline_svg(*timeline), "412 redis</text>"), 20u);
}

TEST(Timeline, TextHasNoLineWiderThanTheColumns) {
  const auto timeline = make_timeline(moved());
  for (const size_t columns : {1, 20, 45, 80, 200}) {
    const std::string text = timeline_text(*timeline, columns, false);
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      EXPECT_LE(end - begin, columns);
      begin = end + 1;
    }
  }
  const std::string text = timeline_text(*timeline, 80, false);
  EXPECT_NE(text.find("stands still 100 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("restore"), std::string::npos) << text;
}

}  // namespace
}  // namespace ppmr
