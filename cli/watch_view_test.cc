#include "cli/watch_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/phase_words.h"
#include "migration/records/take_to.h"

namespace ppmr {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::vector<ScreenLine>& lines) {
  std::string text;
  for (const ScreenLine& line : lines) {
    for (const Span& span : line) text += span.text;
    text += "\n";
  }
  return text;
}

WatchedMount source() {
  return {{"/mnt/out", "/", "fuse.ppmr", "/run/ppmr/x.sock"},
          json{{"role", "source"},
               {"pid", 42},
               {"bytes", 5 << 20},
               {"pool", {{"slots", 64}, {"in_use", 16}, {"chunk_size_bytes", 1 << 20}}},
               {"peers",
                {{{"name", "node2"},
                  {"connected", true},
                  {"transport", "tcp"},
                  {"encryption", "aes-256-gcm"}}}},
               {"checkpoints",
                {{{"name", "redis-412-aaaaaaaa"},
                  {"state", "open"},
                  {"bytes", 64 << 20},
                  {"rate_bytes_per_s", 32 << 20}}}}},
          {1 << 20, 2 << 20}};
}

OwnershipRecord dumping() {
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  take_to(record, MigrationState::kDumping);
  record.mountpoint = "/mnt/out";
  record.peer = "node2";
  record.trees.resize(1);
  record.trees[0].root = 412;
  record.trees[0].name = "redis";
  record.trees[0].checkpoint = "redis-412-aaaaaaaa";
  record.trees[0].phase = TreePhase::kDumping;
  record.trees[0].expected_bytes = 128 << 20;
  return record;
}

TEST(MigrationLines, ShowPhaseShareRateAndTheOtherNode) {
  const WatchPage page = {"node1", "12:00:00", {dumping()}, "", {source()}};
  const std::string text = text_of(migration_lines(page, 80, Charset::kUtf8));
  EXPECT_THAT(text, HasSubstr("aaaaaaaa      412 redis"));
  EXPECT_THAT(text, HasSubstr("50%  32.0 MiB/s"));
  EXPECT_THAT(text, HasSubstr("to node2"));
}

WatchPage page() { return {"node1", "12:00:00", {dumping()}, "", {source()}}; }

TEST(WatchView, ShowsTheMountWithPeerPoolAndRate) {
  const std::string text = text_of(watch_lines(page(), 120, Charset::kAscii));
  EXPECT_THAT(text, HasSubstr("ppmr on node1"));
  EXPECT_THAT(text, HasSubstr("/mnt/out  source, pid 42"));
  EXPECT_THAT(text, HasSubstr("node2, connected over tcp, encryption aes-256-gcm"));
  EXPECT_THAT(text, HasSubstr("[#####...............] 16 of 64 slots of 1.0 MiB"));
  EXPECT_THAT(text, HasSubstr("2.0 MiB/s, 5.0 MiB so far, 0 stalls  =@"));
}

TEST(WatchView, MigrationHasPhaseShareRateAndTimeLeft) {
  const std::string text = text_of(watch_lines(page(), 120, Charset::kAscii));
  EXPECT_THAT(text, HasSubstr("aaaaaaaa      412 redis         frozen"));
  EXPECT_THAT(
      text,
      HasSubstr("[#####.....]  50%  32.0 MiB/s  2.0 s left  64.0 MiB of 128.0 MiB  to node2"));
}

TEST(WatchView, PercentageRefersToThePresentRoundOrToTheFill) {
  WatchPage shown = page();
  OwnershipRecord& record = shown.migrations[0];
  record.plan.is_live = true;
  MigrationNotes& notes = shown.notes[RecordStore::name_of(record.id, record.role)];
  notes.trees = {{.round = 2, .round_bytes = 40, .earlier_bytes = 100}};
  const TreePart part = part_of(record, 0, notes, {.bytes = 111, .memory_bytes = 110});
  EXPECT_EQ(part.round, 2U);
  EXPECT_EQ(part.bytes, 10U);
  EXPECT_EQ(part.expected_bytes, 40U);
  EXPECT_THAT(text_of(watch_lines(shown, 120, Charset::kAscii)), HasSubstr("round 2"));
  notes.pause_began_ns = 1;
  EXPECT_EQ(phase_of(record, record.trees[0], notes), phase::kPaused);
  EXPECT_THAT(text_of(watch_lines(shown, 120, Charset::kAscii)), Not(HasSubstr("left")));
  notes.freezes = true;
  EXPECT_EQ(phase_of(record, record.trees[0], notes), phase::kFrozen);
  take_to(record, MigrationState::kFinished);
  EXPECT_EQ(phase_of(record, record.trees[0], notes), phase::kMoved);
  notes.trees = {{.fill_bytes = 100, .missing_bytes = 25}};
  EXPECT_EQ(phase_of(record, record.trees[0], notes), phase::kFilling);
  EXPECT_EQ(part_of(record, 0, notes, {}).bytes, 75U);
}

TEST(WatchView, CopyHasNoDowntimeBecauseTheOriginalRunsOn) {
  WatchPage shown = page();
  TreeRecord& tree = shown.migrations[0].trees[0];
  tree.freeze_began_ns = 1;
  tree.running_ns = 2'000'001;
  EXPECT_THAT(text_of(watch_lines(shown, 120, Charset::kAscii)), HasSubstr("downtime 2.0 ms"));
  shown.migrations[0].plan.original_goes_on = true;
  EXPECT_THAT(text_of(watch_lines(shown, 120, Charset::kAscii)), Not(HasSubstr("downtime")));
}

TEST(WatchView, PhaseFollowsTheRecord) {
  OwnershipRecord record = dumping();
  TreeRecord& tree = record.trees[0];
  tree.phase = TreePhase::kHeld;
  EXPECT_EQ(phase_of(record, tree), "frozen");
  take_to(record, MigrationState::kSealed);
  EXPECT_EQ(phase_of(record, tree), "restoring");
  take_to(record, MigrationState::kCommitted);
  EXPECT_EQ(phase_of(record, tree), "handing over");
  take_to(record, MigrationState::kAborted);
  EXPECT_EQ(phase_of(record, tree), "stayed");
  record.role = MigrationRole::kTarget;
  take_to(record, MigrationState::kRunning);
  tree.phase = TreePhase::kRunning;
  EXPECT_EQ(phase_of(record, tree), "filling");
}

TEST(WatchView, DaemonThatDoesNotReplyIsShown) {
  WatchPage shown = page();
  shown.mounts[0].status = command_failure(ExitCode::kDaemonSilent, "it does not answer");
  EXPECT_THAT(text_of(watch_lines(shown, 80, Charset::kAscii)),
              HasSubstr("/mnt/out  NO REPLY: it does not answer"));
}

TEST(WatchView, NamesOfPeersCannotControlTheTerminal) {
  WatchPage shown = page();
  (*shown.mounts[0].status)["peers"][0]["name"] = "a\x1b[2Jb";
  shown.migrations[0].peer = "c\x1b[2Jd";
  const std::string text = text_of(watch_lines(shown, 80, Charset::kUtf8));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("a?[2Jb"));
}

TEST(WatchView, FieldsOfTheWrongTypeAreOmitted) {
  WatchPage shown = page();
  shown.mounts[0].status = json{{"role", 5},   {"pid", "x"},      {"bytes", nullptr},
                                {"pool", 3},   {"peers", "none"}, {"checkpoints", {1, 2}},
                                {"store", {}}, {"draining", 1}};
  EXPECT_THAT(text_of(watch_lines(shown, 80, Charset::kAscii)), HasSubstr("/mnt/out"));
}

}  // namespace
}  // namespace ppmr
