#include "cli/migration_progress.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

TEST(MigrationProgress, LineHasPidPhaseBytesAndTimeLeft) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = "dumping"};
  line.bytes = 64 << 20;
  line.expected_bytes = 128 << 20;
  line.rate_bytes_per_s = 32 << 20;
  const std::string text = progress_text(line);
  for (const char* part : {"412", "redis", "dumping", "64", "128", "2.0 s left"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(progress_json(line)["left_s"], 2.0);
}

TEST(MigrationProgress, LineOmitsUnknownValues) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = "dumping"};
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  line.bytes = 200 << 20;
  line.expected_bytes = 128 << 20;  // the checkpoint has grown since the estimate
  line.rate_bytes_per_s = 32 << 20;
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  EXPECT_EQ(progress_text(line).find(" of "), std::string::npos);
}

TEST(MigrationProgress, PhaseFollowsTheEvents) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = "sealed"};
  EXPECT_NE(progress_text(line).find("restoring"), std::string::npos);
  line.phase = "running";
  line.bytes = 1 << 20;
  line.expected_bytes = 4 << 20;
  EXPECT_EQ(progress_text(line).find("25%"), std::string::npos) << "all bytes are there";
  line.post_copy = true;
  EXPECT_NE(progress_text(line).find("25%"), std::string::npos) << "its memory follows";
}

TEST(MigrationProgress, LinesAreCutToTheTerminal) {
  std::vector<ProgressLine> lines(20);
  for (ProgressLine& line : lines) {
    line.name = "a\x1b[2J long name";
    line.bytes = 1 << 20;
    line.phase = "complete";
  }
  lines[19].pid = 4711;
  lines[19].phase = "dumping";
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
  EXPECT_NE(shown[0].find("4711"), std::string::npos) << "those that move come first";
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
  EXPECT_NE(drawn.find("dumping", warning), std::string::npos) << "the progress is drawn below";
}

}  // namespace
}  // namespace ppmr
