#include "migration/protect/protection.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr Clock::time_point kBegan{seconds(1000)};

TEST(NextEpoch, BeginsAtItsIntervalWhateverTheLastOneTook) {
  EXPECT_EQ(next_epoch_at(kBegan, kBegan + seconds(2), false, seconds(30)), kBegan + seconds(30));
}

TEST(NextEpoch, WaitsForTheEndOfTheLastOne) {
  EXPECT_EQ(next_epoch_at(kBegan, kBegan + seconds(70), false, seconds(30)), kBegan + seconds(70));
}

TEST(NextEpoch, FailureIsTriedAgainSoonButNotAtOnce) {
  EXPECT_EQ(next_epoch_at(kBegan, kBegan + seconds(2), true, seconds(30)), kBegan + seconds(7));
  EXPECT_EQ(next_epoch_at(kBegan, kBegan + seconds(2), true, seconds(1)), kBegan + seconds(3));
}

TEST(BestInterval, GrowsWithThePauseAndWithTheTimeBetweenFailures) {
  using std::chrono::milliseconds;
  constexpr std::chrono::hours kDay{24};
  EXPECT_EQ(best_interval(milliseconds(30), 30 * kDay), seconds(394));  // sqrt(2 * 0.03 * 2592000)
  EXPECT_EQ(best_interval(milliseconds(120), 30 * kDay), seconds(789));
  EXPECT_EQ(best_interval(milliseconds(120), kDay), seconds(144));
  EXPECT_EQ(best_interval(milliseconds(0), seconds(1)), kEpochIntervalMin);
  EXPECT_EQ(best_interval(seconds(3600), 10'000 * kDay), kEpochIntervalMax);
}

}  // namespace
}  // namespace ppmr
