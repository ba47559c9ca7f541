#include "migration/source/move_estimate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint64_t kMib = uint64_t{1} << 20;

EstimateInput program(uint64_t memory_bytes, std::vector<WrittenAfter> written, double rate) {
  EstimateInput input;
  input.memory_bytes = memory_bytes;
  input.sample = WriteSample{memory_bytes, std::move(written)};
  input.rate_bytes_per_s = rate;
  return input;
}

TEST(MoveEstimate, IdleProgramTakesItsMemoryThroughTheLink) {
  const auto estimate = estimate_move(program(1024 * kMib, {{milliseconds(800), 0}}, 512e6));
  EXPECT_EQ(estimate.rounds, 1U);
  EXPECT_EQ(estimate.sent_bytes, 1024 * kMib);
  EXPECT_GT(estimate.time, milliseconds(2097));
  EXPECT_LT(estimate.time, milliseconds(2800));
  EXPECT_LT(estimate.downtime, LiveLimits().max_downtime);
  EXPECT_TRUE(estimate.why.empty());
}

TEST(MoveEstimate, SmallHotSetIsSentAgainButKeepsThePromise) {
  const auto estimate = estimate_move(program(
      1024 * kMib, {{milliseconds(100), 40 * kMib}, {milliseconds(800), 40 * kMib}}, 512e6));
  EXPECT_GT(estimate.sent_bytes, 1064 * kMib);
  EXPECT_GT(estimate.downtime, milliseconds(150)) << "40 MiB travel while it is frozen";
  EXPECT_LT(estimate.downtime, LiveLimits().max_downtime);
}

TEST(MoveEstimate, ProgramThatWritesFasterThanTheLinkBreaksThePromise) {
  EstimateInput input = program(
      1024 * kMib, {{milliseconds(400), 500 * kMib}, {milliseconds(800), 1000 * kMib}}, 100e6);
  const auto estimate = estimate_move(input);
  EXPECT_GT(estimate.downtime, milliseconds(9000));
  EXPECT_FALSE(estimate.why.empty());
  EXPECT_FALSE(estimate.stays);
  input.limits.on_timeout = OnTimeout::kCancel;
  EXPECT_TRUE(estimate_move(input).stays);
}

TEST(MoveEstimate, PostCopyOnTimeoutBeginsAgain) {
  EstimateInput input = program(
      1024 * kMib, {{milliseconds(400), 500 * kMib}, {milliseconds(800), 1000 * kMib}}, 100e6);
  input.limits.on_timeout = OnTimeout::kCancel;
  const auto cancelled = estimate_move(input);
  input.limits.on_timeout = OnTimeout::kPostCopy;
  const auto estimate = estimate_move(input);
  EXPECT_FALSE(estimate.stays);
  EXPECT_EQ(estimate.why_post_copy, cancelled.why);
  EXPECT_LT(estimate.downtime, LiveLimits().max_downtime);
  EXPECT_GT(estimate.time, cancelled.time + milliseconds(10'000)) << "all memory is sent again";
}

TEST(MoveEstimate, SlowDownKeepsThePromiseOfAHotSet) {
  EstimateInput input = program(
      1024 * kMib, {{milliseconds(100), 60 * kMib}, {milliseconds(800), 200 * kMib}}, 250e6);
  EXPECT_FALSE(estimate_move(input).why.empty());
  input.limits.slow_down_percent = 90;
  EXPECT_TRUE(estimate_move(input).why.empty()) << estimate_move(input).why;
}

TEST(MoveEstimate, WithoutRoundsAllMemoryTravelsWhileFrozen) {
  EstimateInput input = program(1024 * kMib, {}, 512e6);
  input.sample = std::nullopt;
  const auto frozen = estimate_move(input);
  EXPECT_EQ(frozen.rounds, 0U);
  EXPECT_GT(frozen.downtime, milliseconds(2097));
  EXPECT_GE(frozen.time, frozen.downtime);
  input.limits.memory_follows = true;
  const auto post_copy = estimate_move(input);
  EXPECT_LT(post_copy.downtime, milliseconds(200));
  EXPECT_EQ(post_copy.time, frozen.time) << "until all memory has arrived";
}

TEST(MoveEstimate, MemoryThatNoRoundCopiesTravelsWhileFrozen) {
  EstimateInput input = program(64 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto alone = estimate_move(input);
  input.memory_bytes = 576 * kMib;  // 512 MiB are locked
  EXPECT_GT(estimate_move(input).downtime, alone.downtime + milliseconds(1000));
}

TEST(MoveEstimate, MemoryThatNoRoundCopiesIsFrozenAlsoIfItWasSampled) {
  EstimateInput input = program(576 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto alone = estimate_move(input);
  input.limits.frozen_work.sent_bytes = 512 * kMib;
  EXPECT_GT(estimate_move(input).downtime, alone.downtime + milliseconds(1000));
}

TEST(MoveEstimate, EachProcessAndThreadTakesTimeOfCriu) {
  EstimateInput input = program(64 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto alone = estimate_move(input);
  EXPECT_FALSE(alone.is_crowd);
  input.limits.frozen_work.processes = input.limits.frozen_work.threads = 300;
  const auto crowd = estimate_move(input);
  EXPECT_GT(crowd.downtime, alone.downtime + milliseconds(3500));
  EXPECT_LT(crowd.downtime, alone.downtime + milliseconds(5000));
  EXPECT_TRUE(crowd.is_crowd);
  input.limits.memory_follows = true;
  EXPECT_GT(estimate_move(input).downtime, milliseconds(3500));
  input.limits.frozen_work.processes = 1;
  input.limits.frozen_work.threads = 2000;
  EXPECT_GT(estimate_move(input).downtime, milliseconds(1500));
}

TEST(MoveEstimate, SharedMemoryTravelsBeforeTheFreezeAndIsComparedInIt) {
  EstimateInput input = program(64 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto alone = estimate_move(input);
  input.memory_bytes = 1088 * kMib;
  input.limits.frozen_work.compared_bytes = 1024 * kMib;
  const auto estimate = estimate_move(input);
  EXPECT_EQ(estimate.sent_bytes, alone.sent_bytes + 1024 * kMib);
  EXPECT_GT(estimate.time, alone.time + milliseconds(2000));
  EXPECT_GT(estimate.downtime, alone.downtime + milliseconds(30));
  EXPECT_LT(estimate.downtime, alone.downtime + milliseconds(100));
}

TEST(MoveEstimate, MaxRateHoldsBackTheRoundsOnly) {
  EstimateInput input = program(1024 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto fast = estimate_move(input);
  input.limits.max_rate_bytes_per_s = 100 * kMib;
  const auto slow = estimate_move(input);
  EXPECT_GT(slow.time, milliseconds(10'000));
  EXPECT_LE(slow.downtime, fast.downtime + milliseconds(1));
}

TEST(MoveEstimate, RestsForTheShareOfAProcessorProlongTheRoundsOnly) {
  EstimateInput input = program(1024 * kMib, {{milliseconds(800), 0}}, 512e6);
  const auto fast = estimate_move(input);
  input.limits.cpu_share_percent = 25;
  const auto slow = estimate_move(input);
  EXPECT_GT(slow.time, fast.time * 3);
  EXPECT_LT(slow.time, fast.time * 4);
  EXPECT_LE(slow.downtime, fast.downtime + milliseconds(1));
}

TEST(MoveEstimate, UnknownRateIsAssumedAndSaid) {
  const auto estimate = estimate_move(program(64 * kMib, {}, 0));
  EXPECT_GT(estimate.rate_bytes_per_s, 0);
}

TEST(WrittenWithin, GrowsEvenlyBetweenTheLooksAndBeyond) {
  const WriteSample sample{1000, {{nanoseconds(10), 100}, {nanoseconds(20), 150}}};
  EXPECT_EQ(written_within(sample, nanoseconds(0)), 0U);
  EXPECT_EQ(written_within(sample, nanoseconds(5)), 50U);
  EXPECT_EQ(written_within(sample, nanoseconds(15)), 125U);
  EXPECT_EQ(written_within(sample, nanoseconds(40)), 250U);
  EXPECT_EQ(written_within(sample, nanoseconds(100'000)), 1000U) << "not more than there is";
  EXPECT_EQ(written_within({1000, {}}, nanoseconds(5)), 0U);
}

TEST(WrittenWithin, SumsTheSamplesOfTreesThatMoveTogether) {
  const WriteSample one{1000, {{nanoseconds(10), 100}, {nanoseconds(20), 200}}};
  const WriteSample other{50, {{nanoseconds(10), 10}}};
  const WriteSample sum = sum_of({one, other});
  EXPECT_EQ(sum.memory_bytes, 1050U);
  ASSERT_EQ(sum.written.size(), 2U);
  EXPECT_EQ(sum.written[0].bytes, 110U);
  EXPECT_EQ(sum.written[1].bytes, 220U);
}

OwnershipRecord moved(const std::string& target, uint64_t bytes, int64_t took_ns) {
  OwnershipRecord record;
  record.endpoint = {{"target", target}};
  record.trees.resize(1);
  record.trees[0].dump_began_ns = 1;
  record.trees[0].rounds = {{1 + took_ns, bytes}, {2 + took_ns, 4096}};
  return record;
}

TEST(RateOfEarlierMoves, IsThatOfTheNewestMoveToThisTargetWithEnoughMemory) {
  constexpr int64_t kSecond = 1'000'000'000;
  const std::vector<OwnershipRecord> records = {
      moved("a:1", 900 * kMib, kSecond), moved("a:1", 100 * kMib, kSecond),
      moved("a:1", kMib, kSecond), moved("b:1", 500 * kMib, kSecond)};
  EXPECT_DOUBLE_EQ(rate_of_earlier_moves(records, "a:1"), 100.0 * kMib);
  EXPECT_DOUBLE_EQ(rate_of_earlier_moves(records, "c:1"), 0);
}

}  // namespace
}  // namespace ppmr
