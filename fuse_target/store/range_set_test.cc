#include "fuse_target/store/range_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ppmr {
namespace {

TEST(RangeSet, KeepsOneRangeForSequentialWrites) {
  RangeSet set;
  for (uint64_t i = 0; i < 100; ++i) set.add({i * 10, i * 10 + 10});
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{0, 1000}}));
  EXPECT_TRUE(set.contains({0, 1000}));
  EXPECT_FALSE(set.contains({0, 1001}));
}

TEST(RangeSet, VisitsCoveredAndUncoveredPartsOfTheRange) {
  RangeSet set;
  set.add({10, 20});
  set.add({30, 40});
  std::vector<std::pair<Range, bool>> parts;
  set.for_each_part({5, 35}, [&](Range part, bool covered) { parts.emplace_back(part, covered); });
  const std::vector<std::pair<Range, bool>> expected = {
      {{5, 10}, false}, {{10, 20}, true}, {{20, 30}, false}, {{30, 35}, true}};
  EXPECT_EQ(parts, expected);
}

TEST(RangeSet, RandomAddsAndRemovesGiveTheSameResultAsASetOfPositions) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    RangeSet set;
    std::set<uint64_t> positions;
    for (int step = 0; step < 60; ++step) {
      const uint64_t begin = random() % 60;
      const Range range{begin, begin + random() % 12};
      const bool add = random() % 3 != 0;
      add ? set.add(range) : set.remove(range);
      for (uint64_t at = range.begin; at < range.end; ++at) {
        add ? (void)positions.insert(at) : (void)positions.erase(at);
      }
      const uint64_t asked = random() % 60;
      const Range question{asked, asked + random() % 15};
      bool all = true;
      for (uint64_t at = question.begin; at < question.end; ++at)
        all = all && positions.count(at) > 0;
      ASSERT_EQ(set.contains(question), all) << "seed " << seed;
      uint64_t next = question.begin;
      set.for_each_part(question, [&](Range part, bool covered) {
        ASSERT_EQ(part.begin, next) << "seed " << seed;
        for (uint64_t at = part.begin; at < part.end; ++at) {
          ASSERT_EQ(covered, positions.count(at) > 0) << "seed " << seed;
        }
        next = part.end;
      });
      ASSERT_EQ(next, std::max(question.begin, question.end));
      for (size_t i = 1; i < set.ranges().size(); ++i) {
        ASSERT_LT(set.ranges()[i - 1].end, set.ranges()[i].begin) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace ppmr
