#include "restart_loader/cli/migration_progress.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

TEST(MigrationProgress, ALineSaysWhoWhereHowMuchAndHowLong) {
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

TEST(MigrationProgress, WhatIsNotKnownIsNotSaid) {
  ProgressLine line{.pid = 412, .name = "redis", .phase = "dumping"};
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  line.bytes = 200 << 20;
  line.expected_bytes = 128 << 20;  // it has grown since it was looked at
  line.rate_bytes_per_s = 32 << 20;
  EXPECT_EQ(progress_text(line).find("left"), std::string::npos);
  EXPECT_EQ(progress_text(line).find(" of "), std::string::npos);
}

}  // namespace
}  // namespace ppmr
