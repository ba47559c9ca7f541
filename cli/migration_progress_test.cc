#include "cli/migration_progress.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

TEST(MigrationProgress, LineHasPidPhaseBytesAndTimeLeft) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = phase::kFrozen};
  line.bytes = 64 << 20;
  line.expected_bytes = 128 << 20;
  line.rate_bytes_per_s = 32 << 20;
  const std::string text = progress_text(line);
  for (const char* part : {"412", "redis", "frozen", "64", "128", "2.0 s left"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(progress_json(line)["left_s"], 2.0);
}

TEST(MigrationProgress, LineOmitsUnknownValues) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = phase::kFrozen};
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  line.bytes = 200 << 20;
  line.expected_bytes = 128 << 20;  // the checkpoint has grown since the estimate
  line.rate_bytes_per_s = 32 << 20;
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  EXPECT_EQ(progress_text(line).find(" of "), std::string::npos);
}

TEST(MigrationProgress, PhaseFollowsTheEvents) {
  testing::internal::CaptureStderr();
  MigrationProgress progress({}, ProgressStyle::kTerminal);
  progress.add_process(412, "redis", 4 << 20);
  const auto shown_after = [&](nlohmann::json event) {
    event["pid"] = 412;
    event["migration"] = "aa";
    testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    progress.on_event(event);
    const std::string drawn = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    return drawn;
  };
  const auto has = [](const std::string& drawn, const char* word) {
    return drawn.find(word) != std::string::npos;
  };
  EXPECT_TRUE(has(shown_after({{"event", "round"}, {"round", 1}, {"bytes", 1 << 20}}), "round 2"));
  const std::string paused = shown_after({{"event", "paused"}});
  EXPECT_TRUE(has(paused, "redis           paused")) << paused;
  EXPECT_TRUE(has(shown_after({{"event", "resumed"}}), "round 2"));
  EXPECT_TRUE(has(shown_after({{"event", "dumping"}}), "frozen"));
  EXPECT_TRUE(has(shown_after({{"event", "sealed"}, {"bytes", 4 << 20}}), "restoring"));
  EXPECT_TRUE(has(shown_after({{"event", "running"}}), "filling"));
  const nlohmann::json fills = {
      {"event", "filling"}, {"bytes", 4 << 20}, {"missing_bytes", 3 << 20}};
  EXPECT_TRUE(has(shown_after(fills), "25%"));
  EXPECT_TRUE(has(shown_after({{"event", "complete"}}), "moved"));
  testing::internal::GetCapturedStderr();
}

TEST(MigrationProgress, TimeLeftAndPercentageReferToThePresentRound) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = phase::kCopying};
  line.round = 2;
  line.has_rounds = true;
  line.bytes = 144 << 20;
  line.expected_bytes = 128 << 20;
  line.part_bytes = 16 << 20;
  line.part_expected_bytes = 32 << 20;
  line.rate_bytes_per_s = 16 << 20;
  EXPECT_EQ(progress_json(line)["left_s"], 1.0);
  EXPECT_NE(progress_text(line).find("50%"), std::string::npos) << progress_text(line);
  line.is_paused = true;
  EXPECT_LT(progress_json(line)["left_s"], 0);
  EXPECT_EQ(progress_json(line)["phase"], phase::kPaused);
}

TEST(MigrationProgress, RateMeterSaysForHowLongItHasMeasured) {
  RateMeter meter;
  const RateMeter::Time begin{std::chrono::seconds(1000)};
  EXPECT_EQ(meter.measured_for(), std::chrono::seconds(0));
  meter.add(0, begin);
  meter.add(4096, begin + std::chrono::milliseconds(200));
  EXPECT_EQ(meter.measured_for(), std::chrono::milliseconds(200));
}

TEST(MigrationProgress, LinesAreCutToTheTerminal) {
  std::vector<ProgressLine> lines(20);
  for (ProgressLine& line : lines) {
    line.name = "a\x1b[2J long name";
    line.bytes = 1 << 20;
    line.phase = phase::kMoved;
  }
  lines[19].pid = 4711;
  lines[19].phase = phase::kFrozen;
  const TerminalStyle coloured(true, true);
  for (const size_t columns : {1, 10, 40}) {
    for (const size_t rows : {1, 2, 5, 20}) {
      const auto shown = progress_lines(lines, columns, rows, coloured);
      EXPECT_LE(shown.size(), std::max<size_t>(rows - 1, 1));
      for (const std::string& line : shown) EXPECT_LE(line.size(), columns) << line;
    }
  }
  const auto shown = progress_lines(lines, 80, 5, coloured);
  ASSERT_EQ(shown.size(), 4u);
  EXPECT_NE(shown[0].find("4711"), std::string::npos) << "processes that move come first";
  EXPECT_EQ(shown[0].find('\x1b'), std::string::npos) << shown[0];
  EXPECT_NE(shown[1].find("\x1b[32m"), std::string::npos) << shown[1];
  EXPECT_EQ(shown[3], "and 17 more processes");
}

TEST(MigrationProgress, TerminalShowsAWarningAboveTheProgressLine) {
  testing::internal::CaptureStderr();
  MigrationProgress progress({}, ProgressStyle::kTerminal);
  progress.add_process(412, "redis", 0);
  progress.on_event({{"event", "dumping"}, {"pid", 412}});
  progress.on_event(
      {{"event", "warning"}, {"pid", 412}, {"name", "redis"}, {"sentence", "the disk is full"}});
  const std::string drawn = testing::internal::GetCapturedStderr();
  const size_t warning = drawn.find("warning: 412 redis: the disk is full\n");
  ASSERT_NE(warning, std::string::npos) << drawn;
  EXPECT_NE(drawn.find("frozen", warning), std::string::npos) << "the progress is drawn below";
}

}  // namespace
}  // namespace ppmr
