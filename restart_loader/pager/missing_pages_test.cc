#include "restart_loader/pager/missing_pages.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr uint64_t kP = kPageBytes;

std::vector<std::array<uint64_t, 3>> all(const MissingPages& pages) {
  std::vector<std::array<uint64_t, 3>> found;
  uint64_t at = 0;
  while (const auto range = pages.first_in(at, UINT64_MAX)) {
    found.push_back({range->start / kP, range->end / kP, range->offset / kP});
    at = range->end;
  }
  return found;
}
using List = std::vector<std::array<uint64_t, 3>>;

// Returns pages 10-19 at offset 0, 30-34 at 10, 40-49 at 20 (so 5 pages of the file are not lazy).
MissingPages three_ranges() {
  return MissingPages(
      {{10 * kP, 20 * kP, 0}, {30 * kP, 35 * kP, 10 * kP}, {40 * kP, 50 * kP, 20 * kP}});
}

TEST(MissingPages, FindsTheFirstRangeClipped) {
  const MissingPages pages = three_ranges();
  const auto range = pages.first_in(12 * kP, 100 * kP);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->start, 12 * kP);
  EXPECT_EQ(range->end, 20 * kP);
  EXPECT_EQ(range->offset, 2 * kP);
  EXPECT_EQ(pages.first_in(15 * kP, 16 * kP)->end, 16 * kP);
  EXPECT_EQ(pages.first_in(20 * kP, 31 * kP)->start, 30 * kP);
  EXPECT_FALSE(pages.first_in(20 * kP, 30 * kP));
  EXPECT_FALSE(pages.first_in(50 * kP, UINT64_MAX));
  EXPECT_EQ(pages.bytes(), 25 * kP);
}

TEST(MissingPages, RemovalSplitsRangesAndKeepsTheirOffsets) {
  MissingPages pages = three_ranges();
  pages.remove(12 * kP, 14 * kP);
  pages.remove(18 * kP, 42 * kP);
  EXPECT_EQ(all(pages), (List{{10, 12, 0}, {14, 18, 4}, {42, 50, 22}}));
  EXPECT_EQ(pages.bytes(), 14 * kP);
  pages.remove(0, UINT64_MAX);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pages.bytes(), 0u);
}

TEST(MissingPages, MovedMemoryKeepsItsOffsets) {
  MissingPages pages = three_ranges();
  pages.move(15 * kP, 100 * kP, 20 * kP);  // 15-34 to 100-119
  EXPECT_EQ(all(pages), (List{{10, 15, 0}, {40, 50, 20}, {100, 105, 5}, {115, 120, 10}}));
  pages.move(100 * kP, 41 * kP, 5 * kP);  // over memory that the move unmapped
  EXPECT_EQ(all(pages),
            (List{{10, 15, 0}, {40, 41, 20}, {41, 46, 5}, {46, 50, 26}, {115, 120, 10}}));
}

TEST(MissingPages, BatchIsContiguousInTheFileAndWrapsAround) {
  const MissingPages pages = three_ranges();
  std::vector<PageRange> batch;
  pages.next_batch(0, 100 * kP, batch);
  ASSERT_EQ(batch.size(), 2u) << "the third range has a gap before it in the file";
  EXPECT_EQ(batch[1].start, 30 * kP);
  pages.next_batch(0, 12 * kP, batch);
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[1].end, 32 * kP);
  pages.next_batch(60 * kP, 100 * kP, batch);
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].start, 10 * kP);
  pages.next_batch(45 * kP, 2 * kP, batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].start, 45 * kP);
  MissingPages().next_batch(0, kP, batch);
  EXPECT_TRUE(batch.empty());
}

TEST(MissingPages, BatchCanBeginBehindAPlace) {
  const MissingPages missing(std::vector<PageRange>{{0x1000, 0x2000, 0x10000},
                                                    {0x2000, 0x4000, 0x90000},
                                                    {0x4000, 0x5000, 0x20000},
                                                    {0x6000, 0x7000, 0x92000}});
  std::vector<PageRange> batch;
  missing.next_behind(0, 0x80000, 1 << 20, batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].start, 0x2000u);
  missing.next_behind(0x3000, 0x80000, 1 << 20, batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].offset, 0x91000u);
  missing.next_behind(0x4000, 0x80000, 1 << 20, batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].start, 0x6000u);
  missing.next_behind(0x7000, 0x80000, 1 << 20, batch);
  EXPECT_TRUE(batch.empty()) << "it does not begin anew";
}

}  // namespace
}  // namespace ppmr
