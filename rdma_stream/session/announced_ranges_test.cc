#include "rdma_stream/session/announced_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ppmr {
namespace {

constexpr size_t kChunkBytes = 100'000;  // no power of two

TEST(AnnouncedRanges, LaterBytesWaitForEarlierOnesOfTheSameFile) {
  AnnouncedRanges ranges(4, kChunkBytes);
  ranges.add(0, {.node = 1, .begin = 0, .end = 10});
  ranges.add(1, {.node = 1, .begin = 9, .end = 12});
  ranges.add(2, {.node = 1, .begin = 10, .end = 11});
  ranges.add(3, {.node = 2, .begin = 0, .end = 10});
  EXPECT_FALSE(ranges.overlaps_earlier(0));
  EXPECT_TRUE(ranges.overlaps_earlier(1));
  EXPECT_TRUE(ranges.overlaps_earlier(2));
  EXPECT_FALSE(ranges.overlaps_earlier(3));
  ranges.remove(0);
  EXPECT_FALSE(ranges.overlaps_earlier(1));
  EXPECT_TRUE(ranges.overlaps_earlier(2));
}

TEST(AnnouncedRanges, OneSlotIsEnough) {
  AnnouncedRanges ranges(1, 1);
  ranges.add(0, {.node = 7, .begin = uint64_t{INT64_MAX} - 1, .end = INT64_MAX});
  EXPECT_FALSE(ranges.overlaps_earlier(0));
  ranges.remove(0);
}

TEST(AnnouncedRanges, FindsWhatALookAtAllOfThemFinds) {
  struct Chunk {
    AnnouncedRanges::Range range;
    uint64_t order;
    bool in_use;
  };
  constexpr uint32_t kSlots = 50;
  AnnouncedRanges ranges(kSlots, kChunkBytes);
  std::vector<Chunk> chunks(kSlots, {{}, 0, false});
  std::mt19937_64 random(3);
  size_t overlaps = 0;
  for (uint64_t order = 1; order < 20'000; ++order) {
    const auto slot = static_cast<uint32_t>(random() % kSlots);
    Chunk& chunk = chunks[slot];
    if (chunk.in_use) ranges.remove(slot);
    chunk.in_use = random() % 4 != 0;
    if (!chunk.in_use) continue;
    const uint64_t begin = random() % 20 * (kChunkBytes / 2) + random() % 3;
    chunk.range = {1 + random() % 3, begin, begin + 1 + random() % kChunkBytes};
    chunk.order = order;
    ranges.add(slot, chunk.range);
    for (uint32_t looked_at = 0; looked_at < kSlots; ++looked_at) {
      const Chunk& mine = chunks[looked_at];
      if (!mine.in_use) continue;
      const bool expected = std::any_of(chunks.begin(), chunks.end(), [&](const Chunk& other) {
        return other.in_use && other.order < mine.order && other.range.node == mine.range.node &&
               other.range.begin < mine.range.end && mine.range.begin < other.range.end;
      });
      ASSERT_EQ(ranges.overlaps_earlier(looked_at), expected) << "slot " << looked_at;
      overlaps += expected ? 1 : 0;
    }
  }
  EXPECT_GT(overlaps, 1000u);
}

}  // namespace
}  // namespace ppmr
