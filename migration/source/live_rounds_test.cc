#include "migration/source/live_rounds.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr uint64_t kMib = uint64_t{1} << 20;

// Plays rounds against a process that writes `written_rate` different bytes per second, at most
// `hot_bytes`, over a link that carries `link_rate`. A process that stands still for a share of the
// time writes for the rest of it.
struct Played {
  std::vector<Round> rounds;
  RoundDecision last;
};
Played play(uint64_t memory_bytes, double written_rate, uint64_t hot_bytes, double link_rate,
            const LiveLimits& limits = {}) {
  Played played;
  uint64_t bytes = memory_bytes;
  nanoseconds elapsed{0};
  do {
    const nanoseconds took{static_cast<int64_t>(static_cast<double>(bytes) / link_rate * 1e9) +
                           5'000'000};
    elapsed += took;
    const uint64_t stands_percent = played.last.slow_down_percent;
    played.rounds.push_back({bytes, took, 0, stands_percent});
    const double writes_ns =
        static_cast<double>(took.count()) * static_cast<double>(100 - stands_percent) / 100;
    bytes = std::min(hot_bytes, static_cast<uint64_t>(written_rate * 1e-9 * writes_ns));
    played.last = decide_round(played.rounds, bytes, elapsed, limits);
  } while (played.last.next == NextStep::kRound && played.rounds.size() < 1000);
  return played;
}

TEST(LiveRounds, FreezesAnIdleProcessAfterOneRound) {
  const Played played = play(1024 * kMib, 0, 0, 500e6);
  EXPECT_EQ(played.rounds.size(), 1U);
  EXPECT_EQ(played.last.next, NextStep::kFreeze);
  EXPECT_TRUE(played.last.why.empty());
  EXPECT_LT(played.last.expected_downtime, milliseconds(200));
}

TEST(LiveRounds, CopiesAHotSetUntilItFits) {
  const Played played = play(1024 * kMib, 80e6, 64 * kMib, 500e6);
  EXPECT_GT(played.rounds.size(), 1U);
  EXPECT_LT(played.rounds.size(), 8U);
  EXPECT_EQ(played.last.next, NextStep::kFreeze);
  EXPECT_TRUE(played.last.why.empty());
  EXPECT_LT(played.last.expected_downtime, milliseconds(300));
}

TEST(LiveRounds, SendsNoMoreThanTheTargetHasRoomFor) {
  LiveLimits limits;
  const auto played_with = [&](double room_times, double written_rate) {
    limits.room_times = room_times;
    return play(1024 * kMib, written_rate, 900 * kMib, 500e6, limits);
  };
  for (const double room_times : {2.1, 3.0, 4.0, 5.5, 100.0}) {
    for (const double written_rate : {1e6, 100e6, 430e6}) {
      const Played played = played_with(room_times, written_rate);
      EXPECT_TRUE(has_room_for_rounds(limits));
      EXPECT_EQ(played.last.next, NextStep::kFreeze);
      uint64_t sent_bytes = 0;
      for (const Round& round : played.rounds) sent_bytes += round.bytes;
      EXPECT_LE(static_cast<double>(sent_bytes), (room_times - 1) * 1024 * kMib);
      EXPECT_LE(sent_bytes, 4 * 1024 * kMib);
    }
  }
  EXPECT_EQ(played_with(2.1, 1e6).last.why, "");  // little is written: the rounds are worth it
  EXPECT_NE(played_with(3, 430e6).last.why.find("no room"), std::string::npos);
  EXPECT_NE(played_with(100, 430e6).last.why.find("more than four times"), std::string::npos);
  limits.room_times = 2;
  EXPECT_FALSE(has_room_for_rounds(limits));
}

TEST(LiveRounds, TheFrozenRestHasToFitAsWell) {
  const uint64_t memory_bytes = 1024 * kMib;
  LiveLimits limits;
  EXPECT_TRUE(fits_with_rounds(memory_bytes, memory_bytes, memory_bytes, limits));
  limits.room_times = 2.5;
  EXPECT_TRUE(fits_with_rounds(memory_bytes, memory_bytes / 2, memory_bytes, limits));
  EXPECT_FALSE(fits_with_rounds(memory_bytes, memory_bytes / 2 + 4096, memory_bytes, limits));
  // A small process counts as one of 64 MiB.
  EXPECT_TRUE(fits_with_rounds(kMib, 64 * kMib, kMib, limits));
}

TEST(LiveRounds, EndsForAProcessThatWritesFasterThanTheLink) {
  const Played played = play(1024 * kMib, 2e9, 1024 * kMib, 500e6);
  EXPECT_EQ(played.rounds.size(), 2U);
  EXPECT_EQ(played.last.next, NextStep::kFreeze);
  EXPECT_NE(played.last.why.find("as fast as it can be sent"), std::string::npos);
  EXPECT_NE(played.last.why.find("--max-downtime (300 ms)"), std::string::npos);
}

TEST(LiveRounds, CancelsIfAskedTo) {
  const Played played =
      play(1024 * kMib, 2e9, 1024 * kMib, 500e6, {.on_timeout = OnTimeout::kCancel});
  EXPECT_EQ(played.last.next, NextStep::kCancel);
  const Played slow = play(1024 * kMib, 20e6, 1024 * kMib, 30e6, {.max_time = seconds(10)});
  EXPECT_EQ(slow.last.next, NextStep::kFreeze);
  EXPECT_NE(slow.last.why.find("--max-time is over"), std::string::npos);
}

TEST(LiveRounds, FreezesIfThePromiseIsKeptAlthoughTheRoundsNoLongerShrink) {
  const Played played = play(256 * kMib, 1e9, 16 * kMib, 500e6, {.on_timeout = OnTimeout::kCancel});
  EXPECT_EQ(played.last.next, NextStep::kFreeze);
  EXPECT_TRUE(played.last.why.empty());
}

TEST(LiveRounds, EndsAlthoughNoMoveCanKeepAPromiseOfZero) {
  const Played played = play(64 * kMib, 100e6, 64 * kMib, 500e6, {.max_downtime = milliseconds(0)});
  EXPECT_EQ(played.last.next, NextStep::kFreeze);
}

TEST(LiveRounds, SendsAtMostFourTimesTheMemory) {
  for (const double written : {1e6, 1e8, 4e8, 5e8, 6e8, 1e10}) {
    for (const uint64_t hot : {kMib, 100 * kMib, 4096 * kMib}) {
      const Played played = play(4096 * kMib, written, hot, 500e6, {.max_time = seconds(100000)});
      uint64_t sent = 0;
      for (const Round& round : played.rounds) sent += round.bytes;
      EXPECT_LE(sent, 4 * 4096 * kMib);
      EXPECT_LT(played.rounds.size(), 200U);
    }
  }
}

TEST(LiveRounds, ParsesWhatToDoOnTimeout) {
  EXPECT_EQ(*parse_on_timeout("freeze"), OnTimeout::kFreeze);
  EXPECT_EQ(*parse_on_timeout("cancel"), OnTimeout::kCancel);
  EXPECT_EQ(*parse_on_timeout("post-copy"), OnTimeout::kPostCopy);
  EXPECT_FALSE(parse_on_timeout("stop"));
}

TEST(LiveRounds, PostCopyOnTimeoutCancelsAMoveThatItWouldShorten) {
  const LiveLimits limits{.on_timeout = OnTimeout::kPostCopy};
  EXPECT_EQ(play(1024 * kMib, 2e9, 1024 * kMib, 500e6, limits).last.next, NextStep::kCancel);
  EXPECT_EQ(play(1024 * kMib, 80e6, 64 * kMib, 500e6, limits).last.next, NextStep::kFreeze);
  LiveLimits crowd = limits;
  crowd.frozen_work = {.processes = 300, .threads = 300};
  const Played played = play(64 * kMib, 0, 0, 500e6, crowd);
  EXPECT_EQ(played.last.next, NextStep::kFreeze) << "CRIU takes as long in post-copy";
  EXPECT_NE(played.last.why, "");
}

TEST(LiveRounds, MemoryThatFollowsInPostCopyDoesNotCount) {
  LiveLimits limits;
  limits.memory_follows = true;
  const Played hot = play(1024 * kMib, 2e9, 1024 * kMib, 500e6, limits);
  EXPECT_EQ(hot.last.next, NextStep::kFreeze);
  EXPECT_EQ(hot.last.why, "");
  EXPECT_EQ(hot.rounds.size(), 1U) << "more rounds would send the same again";
  const Played cooling = play(1024 * kMib, 80e6, 1024 * kMib, 500e6, limits);
  EXPECT_GT(cooling.rounds.size(), 1U) << "each round leaves less to send after the decision";
}

// The work of CRIU and the transfer of memory that no round copies count as well: see
// frozen_work.h.
TEST(LiveRounds, ExpectedDowntimeIncludesAllWorkOnTheFrozenTree) {
  const auto decide = [](const FrozenWork& work) {
    return play(64 * kMib, 0, 0, 500e6, {.on_timeout = OnTimeout::kCancel, .frozen_work = work})
        .last;
  };
  EXPECT_EQ(decide({}).next, NextStep::kFreeze);
  const RoundDecision crowd = decide({.processes = 300, .threads = 300});
  EXPECT_EQ(crowd.next, NextStep::kCancel);
  EXPECT_GT(crowd.expected_downtime, seconds(4));
  EXPECT_NE(crowd.why.find("so many processes"), std::string::npos) << crowd.why;
  EXPECT_EQ(decide({.threads = 2000}).next, NextStep::kCancel);
  const RoundDecision locked = decide({.sent_bytes = 512 * kMib});
  EXPECT_EQ(locked.next, NextStep::kCancel);
  EXPECT_NE(locked.why.find("locked memory"), std::string::npos) << locked.why;
  EXPECT_GT(decide({.compared_bytes = 1024 * kMib}).expected_downtime,
            decide({}).expected_downtime + milliseconds(30));
}

TEST(LiveRounds, SlowsDownATreeThatWritesFasterThanTheLink) {
  const auto play_with = [](uint64_t percent) {
    return play(1024 * kMib, 600e6, 200 * kMib, 500e6, {.slow_down_percent = percent});
  };
  EXPECT_NE(play_with(0).last.why, "");
  const Played slowed = play_with(80);
  EXPECT_EQ(slowed.last.next, NextStep::kFreeze);
  EXPECT_EQ(slowed.last.why, "");
  EXPECT_EQ(slowed.rounds.front().slow_down_percent, 0U) << "at first it runs freely";
  for (size_t i = 1; i < slowed.rounds.size(); ++i) {
    EXPECT_GE(slowed.rounds[i].slow_down_percent, slowed.rounds[i - 1].slow_down_percent);
    EXPECT_LE(slowed.rounds[i].slow_down_percent, 80U);
  }
}

TEST(LiveRounds, DoesNotSlowDownATreeWhoseRoundsShrink) {
  const Played played = play(1024 * kMib, 80e6, 64 * kMib, 500e6, {.slow_down_percent = 90});
  for (const Round& round : played.rounds) EXPECT_EQ(round.slow_down_percent, 0U);
}

// The memory of the frozen tree travels faster than --max-rate allows the rounds.
TEST(LiveRounds, RateOfALimitedRoundDoesNotCountForTheFrozenPart) {
  const auto downtime_after = [](uint64_t max_rate_bytes_per_s) {
    const std::vector<Round> rounds = {{100 * kMib, seconds(10), max_rate_bytes_per_s}};
    return decide_round(rounds, 20 * kMib, seconds(10), {}).expected_downtime;
  };
  EXPECT_LT(downtime_after(10'000'000), milliseconds(300));
  EXPECT_GT(downtime_after(100'000'000), seconds(1)) << "the link is slower than the limit";
  EXPECT_GT(downtime_after(0), seconds(1));
}

TEST(LiveRounds, MeasuredFixedPartReplacesTheEstimate) {
  LiveLimits limits{.max_downtime = milliseconds(150)};
  const std::vector<Round> rounds = {{4096 * kMib, seconds(4), 0}, {kMib, milliseconds(9), 0}};
  EXPECT_NE(decide_round(rounds, 4096, seconds(5), limits).why, "") << "0.34 s are expected";
  limits.fixed_part = milliseconds(90);
  const RoundDecision decision = decide_round(rounds, 4096, seconds(5), limits);
  EXPECT_EQ(decision.next, NextStep::kFreeze);
  EXPECT_EQ(decision.why, "");
}

}  // namespace
}  // namespace ppmr
