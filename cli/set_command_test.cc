#include "cli/set_command.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

TEST(SetCommand, ReadsLimitsInOneWordOrSeveral) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"max-rate=100MiB,cpu-share=25%,max-downtime=1s,max-time=2m"},
        std::vector<std::string>{"max-rate=100M/s,", "cpu-share=25", "max-downtime=1000ms",
                                 "max-time=120"}}) {
    const auto limits = parse_changed_limits(words);
    ASSERT_TRUE(limits) << limits.error().message;
    EXPECT_EQ(limits->max_rate_bytes_per_s, uint64_t{100} << 20);
    EXPECT_EQ(limits->cpu_share_percent, 25u);
    EXPECT_EQ(limits->max_downtime, milliseconds(1000));
    EXPECT_EQ(limits->max_time, milliseconds(120'000));
  }
  const auto one = parse_changed_limits({"max-rate=0"});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->max_rate_bytes_per_s, 0u) << "no limit";
  EXPECT_FALSE(one->max_downtime || one->max_time) << "unchanged";
}

TEST(SetCommand, RefusesWhatItDoesNotUnderstand) {
  for (const char* word : {"", ",", "max-rate", "max-rate=", "max-rate=fast", "max-rate=1K",
                           "max-downtime=0", "max-downtime=-1", "rate=1M", "=1M", "max-time=x",
                           "cpu-share=", "cpu-share=0", "cpu-share=101", "cpu-share=2.5"}) {
    const auto limits = parse_changed_limits({word});
    EXPECT_FALSE(limits) << word;
  }
  EXPECT_FALSE(parse_changed_limits({}));
}

}  // namespace
}  // namespace ppmr
