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

}  // namespace
}  // namespace ppmr
