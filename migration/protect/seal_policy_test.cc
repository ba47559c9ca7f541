#include "migration/protect/seal_policy.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

uint64_t sealed(SealPolicy policy, const std::vector<uint64_t>& numbers) {
  std::vector<SealedEpoch> kept;
  for (const uint64_t number : numbers) kept.push_back({.number = number});
  return kept[find_sealed(policy, kept)].number;
}

TEST(SealPolicy, AllCountsWhatTheSlowestHas) {
  EXPECT_EQ(sealed(SealPolicy::kAll, {7, 5, 9}), 5u);
  EXPECT_EQ(sealed(SealPolicy::kAll, {7, 0}), 0u);
}

TEST(SealPolicy, AnyCountsWhatTheFastestHas) {
  EXPECT_EQ(sealed(SealPolicy::kAny, {7, 5, 9}), 9u);
  EXPECT_EQ(sealed(SealPolicy::kAny, {0, 0}), 0u);
}

TEST(SealPolicy, QuorumIsMoreThanHalf) {
  EXPECT_EQ(sealed(SealPolicy::kQuorum, {7, 5, 9}), 7u);
  EXPECT_EQ(sealed(SealPolicy::kQuorum, {7, 5}), 5u);
  EXPECT_EQ(sealed(SealPolicy::kQuorum, {1, 2, 3, 4}), 2u);
}

TEST(SealPolicy, OnePartnerIsAllOfThem) {
  for (const SealPolicy policy : {SealPolicy::kAll, SealPolicy::kQuorum, SealPolicy::kAny}) {
    EXPECT_EQ(sealed(policy, {4}), 4u);
  }
}

TEST(SealPolicy, OtherWordsAreRefused) {
  EXPECT_EQ(parse_seal_policy("quorum").value(), SealPolicy::kQuorum);
  EXPECT_FALSE(parse_seal_policy("most"));
}

}  // namespace
}  // namespace ppmr
