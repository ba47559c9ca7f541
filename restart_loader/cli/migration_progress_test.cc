#include "restart_loader/cli/migration_progress.h"

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
  line.expected_bytes = 128 << 20;  // it has grown since the estimate
  line.rate_bytes_per_s = 32 << 20;
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  EXPECT_EQ(progress_text(line).find(" of "), std::string::npos);
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
