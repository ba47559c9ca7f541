#include "jobs/agent/move_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jobs/agent/requests.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

TEST(MoveLimits, BecomeOptionsOfMigrate) {
  EXPECT_TRUE(migrate_options({}).empty()) << "its defaults";
  EXPECT_THAT(migrate_options({.max_downtime = milliseconds(200),
                               .max_time = milliseconds(90'000),
                               .max_rate_bytes_per_s = 1 << 20,
                               .cpu_share_percent = 50,
                               .slow_down_percent = 80,
                               .cancels = true}),
              testing::ElementsAre("--max-downtime", "200ms", "--max-time", "90000ms", "--max-rate",
                                   "1048576", "--cpu-share", "50", "--slow-down", "80",
                                   "--on-timeout", "cancel"));
  EXPECT_THAT(migrate_options({.stop_and_copy = true}), testing::ElementsAre("--stop-and-copy"));
}

TEST(MoveLimits, TravelWithTheRequest) {
  const auto packed = to_request(user_request::Evacuate{
      .host = "b", .to = "", .limits = {.max_downtime = milliseconds(200), .cancels = true}});
  const auto read = read_request<user_request::Any>(packed);
  ASSERT_TRUE(read) << read.error().message;
  const auto& evacuate = std::get<user_request::Evacuate>(*read);
  EXPECT_EQ(evacuate.limits.max_downtime, milliseconds(200));
  EXPECT_FALSE(evacuate.limits.max_time);
  EXPECT_TRUE(evacuate.limits.cancels);
}

TEST(MoveLimits, ARequestThatHasNoneMeansTheDefaults) {
  const auto read = read_request<user_request::Any>({{"op", "evacuate"}, {"host", "b"}});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(migrate_options(std::get<user_request::Evacuate>(*read).limits).empty());
}

}  // namespace
}  // namespace ppmr
