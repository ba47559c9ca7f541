#include "processes/memory/small_ranges.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kStart = uint64_t{1} << 32;

using Places = std::vector<std::pair<uint64_t, uint64_t>>;  // offset and bytes

PageRange range(uint64_t offset, uint64_t bytes) { return {kStart, kStart + bytes, offset}; }

Places places(const PageIndex& index) {
  Places places;
  for (const PageRange& chosen : small_ranges(index)) {
    places.emplace_back(chosen.offset, chosen.bytes());
  }
  return places;
}

TEST(SmallRanges, LeavesLargeRangesOut) {
  const PageIndex index{
      10 * kMiB, {{1, 1, {range(0, kMiB), range(kMiB, 5 * kMiB), range(6 * kMiB, 2 * kMiB)}}}};
  EXPECT_EQ(places(index), (Places{{0, kMiB}, {6 * kMiB, 2 * kMiB}}));
}

TEST(SmallRanges, JoinsNeighbouringRanges) {
  PageIndex index{0, {{1, 1, {}}}};
  for (uint64_t i = 0; i < 8; ++i) index.tasks[0].ranges.push_back(range(i * kMiB, kMiB));
  EXPECT_EQ(places(index), (Places{{0, 8 * kMiB}}));
}

TEST(SmallRanges, CountsSharedRangesOnce) {
  PageIndex index{0, {}};
  for (pid_t pid = 1; pid <= 9; ++pid) index.tasks.push_back({pid, pid, {range(0, 3 * kMiB)}});
  index.tasks.push_back({10, 10, {range(100 * kMiB, 3 * kMiB + kPageBytes)}});
  EXPECT_EQ(places(index), (Places{{0, 3 * kMiB}, {100 * kMiB, 3 * kMiB + kPageBytes}}));
}

TEST(SmallRanges, PrefersTheSmallestRanges) {
  PageIndex index{0, {{1, 1, {}}}};
  for (uint64_t i = 0; i < 20; ++i) {
    index.tasks[0].ranges.push_back(range(i * 10 * kMiB, 3 * kMiB));
  }
  index.tasks[0].ranges.push_back(range(500 * kMiB, kPageBytes));
  const Places chosen = places(index);
  EXPECT_EQ(chosen.size(), 11U);  // 10 of them have 3 MiB
  EXPECT_EQ(chosen.back(), (std::pair(500 * kMiB, kPageBytes)));
}

TEST(SmallRanges, ReturnsNoMoreThanARequestHolds) {
  PageIndex index{0, {{1, 1, {}}}};
  for (uint64_t i = 0; i < 5000; ++i) {
    index.tasks[0].ranges.push_back(range(i * 2 * kPageBytes, kPageBytes));
  }
  EXPECT_EQ(places(index).size(), 1000U);
}

}  // namespace
}  // namespace ppmr
