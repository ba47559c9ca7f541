#include "migration/relay/peer_clock.h"

#include <gtest/gtest.h>

#include <random>

namespace ppmr {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kNow = 1'800'000'000'000 * kMs;

// Returns an exchange with a peer whose clock is `ahead_ns` ahead, over a network with these
// delays.
ClockExchange exchange(int64_t ahead_ns, int64_t there_ns, int64_t back_ns) {
  return {kNow, kNow + there_ns + ahead_ns, kNow + there_ns + back_ns};
}

TEST(PeerClock, IsWithinItsUncertaintyWhateverTheDelays) {
  std::mt19937_64 random(1);
  const auto delay = [&] { return static_cast<int64_t>(random() % (50 * kMs)); };
  for (int i = 0; i < 1000; ++i) {
    const int64_t ahead_ns = static_cast<int64_t>(random() % (20'000 * kMs)) - 10'000 * kMs;
    std::vector<ClockExchange> exchanges;
    for (int j = 0; j < 5; ++j) exchanges.push_back(exchange(ahead_ns, delay(), delay()));
    const auto clock = estimate_peer_clock(exchanges);
    ASSERT_TRUE(clock);
    EXPECT_LE(std::abs(clock->ahead_ns - ahead_ns), clock->uncertainty_ns);
  }
}

TEST(PeerClock, IsThatOfTheShortestRoundTrip) {
  const auto clock =
      estimate_peer_clock({exchange(5 * kMs, 90 * kMs, 10 * kMs),
                           exchange(5 * kMs, 1 * kMs, 1 * kMs), exchange(5 * kMs, 20 * kMs, 0)});
  ASSERT_TRUE(clock);
  EXPECT_EQ(clock->ahead_ns, 5 * kMs);
  EXPECT_EQ(clock->uncertainty_ns, 1 * kMs);
}

TEST(PeerClock, IsUnknownWithoutAnExchange) {
  EXPECT_FALSE(estimate_peer_clock({}));
  EXPECT_FALSE(estimate_peer_clock({{kNow, kNow, kNow - 1}})) << "our clock was set back";
}

TEST(PeerClock, OfAnHourAheadDoesNotLengthenADowntime) {
  const int64_t hour = 3'600'000 * kMs;
  OwnershipRecord target;
  target.trees.emplace_back();
  target.trees[0].running_ns = kNow + 200 * kMs + hour;
  use_own_clock(target, {.ahead_ns = hour, .uncertainty_ns = kMs});
  EXPECT_EQ(target.trees[0].running_ns - kNow, 200 * kMs);
  EXPECT_EQ(target.trees[0].complete_ns, 0) << "not known";
}

TEST(PeerClock, OfAnHourBehindDoesNotHideADowntime) {
  const int64_t hour = 3'600'000 * kMs;
  OwnershipRecord target;
  target.trees.emplace_back();
  target.trees[0].running_ns = kNow + 200 * kMs - hour;
  use_own_clock(target, {.ahead_ns = -hour, .uncertainty_ns = kMs});
  EXPECT_EQ(target.trees[0].running_ns - kNow, 200 * kMs);
  EXPECT_EQ(target.trees[0].held_ns, 0) << "not known";
}

}  // namespace
}  // namespace ppmr
