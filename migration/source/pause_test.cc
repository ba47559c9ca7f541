#include "migration/source/pause.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace ppmr {
namespace {

using std::chrono::nanoseconds;

class Pause : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  const std::string directory_ = testing::TempDir() + "/pause";
};

TEST_F(Pause, LastsUntilItIsEnded) {
  EXPECT_EQ(pause_began_ns(directory_), 0);
  EXPECT_EQ(time_paused(directory_), nanoseconds(0));
  ASSERT_TRUE(begin_pause(directory_));
  EXPECT_GT(pause_began_ns(directory_), 0);
  EXPECT_EQ(begin_pause(directory_).error().errno_value, EALREADY);
  const auto first = end_pause(directory_);
  ASSERT_TRUE(first);
  EXPECT_EQ(time_paused(directory_), *first);
  EXPECT_EQ(end_pause(directory_).error().errno_value, ENOENT);
  ASSERT_TRUE(begin_pause(directory_));
  EXPECT_GE(time_paused(directory_), *first) << "the second one counts as well";
}

TEST_F(Pause, DelaysAFreezeAndIsRefusedAfterIt) {
  ASSERT_TRUE(begin_pause(directory_));
  EXPECT_FALSE(exclude_pause(directory_).value());
  EXPECT_FALSE(is_pause_excluded(directory_));
  ASSERT_TRUE(end_pause(directory_));
  EXPECT_TRUE(exclude_pause(directory_).value());
  EXPECT_EQ(begin_pause(directory_).error().errno_value, EBUSY);
  EXPECT_EQ(pause_began_ns(directory_), 0);
}

}  // namespace
}  // namespace ppmr
