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

constexpr const char* kRun = "0123456789abcdef0123456789abcdef";

RunGoesOn judge(const KeptAtPartner& kept, uint64_t newest_end = 500) {
  return judge_run(kept, kRun, 4, newest_end, 700);
}

TEST(JudgeRun, PartnerWithoutTheFailedEpochGetsOnlyWhatIsMissing) {
  EXPECT_EQ(judge({4, kRun, 500}), RunGoesOn::kFromNewest);
}

TEST(JudgeRun, EpochWhoseAnswerWasLostIsNotSentAgain) {
  EXPECT_EQ(judge({5, kRun, 700}), RunGoesOn::kWithEpoch);
}

TEST(JudgeRun, PartnerWithOtherPagesGetsAll) {
  EXPECT_EQ(judge({0, "", 0}), RunGoesOn::kNot) << "its node has started again";
  EXPECT_EQ(judge({4, "another run", 500}), RunGoesOn::kNot);
  EXPECT_EQ(judge({3, kRun, 500}), RunGoesOn::kNot);
  EXPECT_EQ(judge({4, kRun, 600}), RunGoesOn::kNot);
  EXPECT_EQ(judge({5, kRun, 600}), RunGoesOn::kNot);
  EXPECT_EQ(judge({4, kRun, 0}), RunGoesOn::kNot) << "its version does not say where pages end";
}

TEST(JudgeRun, FirstEpochThatFailsBeginsANewRun) {
  EXPECT_EQ(judge({4, kRun, 0}, 0), RunGoesOn::kNot);
}

TEST(CriuPatience, IsManyPausesAndNeverShort) {
  using std::chrono::milliseconds;
  EXPECT_EQ(criu_patience(milliseconds(150)), milliseconds(7500));
  EXPECT_EQ(criu_patience(milliseconds(1)), milliseconds(2000));
}

TEST(ClockOfPartner, EpochIsKeptOnThePartnersClock) {
  const PeerClock clock{.ahead_ns = 3'600'000'000'000, .uncertainty_ns = 7};
  const SealedEpoch sent = on_clock_of_partner({.number = 1, .frozen_ns = 5}, clock);
  EXPECT_EQ(sent.frozen_ns, 3'600'000'000'005);
  EXPECT_EQ(sent.clock_uncertainty_ns, 7);
  EXPECT_EQ(on_own_clock({.number = 1, .frozen_ns = sent.frozen_ns}, clock).frozen_ns, 5);
  EXPECT_EQ(on_own_clock({.number = 0, .frozen_ns = 0}, clock).frozen_ns, 0) << "nothing there";
}

TEST(ClockOfPartner, EpochSaysThatTheDifferenceIsUnknown) {
  const SealedEpoch sent = on_clock_of_partner({.number = 1, .frozen_ns = 5}, std::nullopt);
  EXPECT_EQ(sent.frozen_ns, 5);
  EXPECT_EQ(sent.clock_uncertainty_ns, -1);
}

}  // namespace
}  // namespace ppmr
