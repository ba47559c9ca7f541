#include "daemon/background/idle_clock.h"

#include <gtest/gtest.h>

#include <future>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(IdleClock, IsOverWhenTheDaemonWasIdleForTheWholeLimit) {
  const IdleClock::Time start{};
  IdleClock clock(seconds(60), start);
  EXPECT_FALSE(clock.is_over(false, start + seconds(59)));
  EXPECT_TRUE(clock.is_over(false, start + seconds(60)));
}

TEST(IdleClock, BeginsAgainWheneverTheDaemonIsBusy) {
  const IdleClock::Time start{};
  IdleClock clock(seconds(60), start);
  EXPECT_FALSE(clock.is_over(true, start + seconds(100)));
  EXPECT_FALSE(clock.is_over(false, start + seconds(159)));
  EXPECT_TRUE(clock.is_over(false, start + seconds(160)));
}

TEST(IdleClock, BeginsAgainForACommandThatAsksInTime) {
  const IdleClock::Time start{};
  IdleClock clock(seconds(60), start);
  EXPECT_TRUE(clock.stay(start + seconds(59)));
  EXPECT_FALSE(clock.is_over(false, start + seconds(118)));
}

TEST(IdleClock, CommandThatComesTooLateIsRefused) {
  const IdleClock::Time start{};
  IdleClock clock(seconds(60), start);
  EXPECT_TRUE(clock.is_over(false, start + seconds(60)));
  EXPECT_FALSE(clock.stay(start + seconds(60)));
  EXPECT_TRUE(clock.is_over(true, start + seconds(61)));
}

TEST(IdleEnd, EndsTheDaemonOnce) {
  IdleClock clock(milliseconds(1), std::chrono::steady_clock::now());
  std::promise<void> ended;
  IdleEnd end(
      clock, milliseconds(1), [] { return false; }, [&] { ended.set_value(); });
  ended.get_future().wait();
}

TEST(IdleEnd, LeavesABusyDaemonAlone) {
  IdleClock clock(milliseconds(1), std::chrono::steady_clock::now());
  std::promise<void> asked;
  int times = 0;
  bool ended = false;
  {
    IdleEnd end(
        clock, milliseconds(1),
        [&] {
          if (++times == 3) asked.set_value();
          return true;
        },
        [&] { ended = true; });
    asked.get_future().wait();
  }
  EXPECT_FALSE(ended);
}

}  // namespace
}  // namespace ppmr
