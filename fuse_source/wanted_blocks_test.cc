#include "fuse_source/wanted_blocks.h"

#include <gtest/gtest.h>

#include <future>
#include <random>
#include <set>

namespace ppmr {
namespace {

constexpr uint64_t kBlock = kWantedBlockBytes;

// Returns the numbers of the first block and of the block behind the last one; {0, 0} for an empty
// part.
std::pair<uint64_t, uint64_t> blocks(const WantedBlocks::Part& part) {
  if (part.length == 0) return {0, 0};
  EXPECT_EQ(part.offset % kBlock, 0u);
  return {part.offset / kBlock, (part.offset + part.length + kBlock - 1) / kBlock};
}
using Blocks = std::pair<uint64_t, uint64_t>;

TEST(WantedBlocks, TakesTheWholeFileInOrder) {
  WantedBlocks file(5 * kBlock + 4096);
  EXPECT_EQ(blocks(file.take_next(0, 4 * kBlock)), Blocks(0, 4));
  const auto last = file.take_next(4 * kBlock, 4 * kBlock);
  EXPECT_EQ(last.offset, 4 * kBlock);
  EXPECT_EQ(last.length, kBlock + 4096);
  EXPECT_EQ(file.taken_bytes(), 5 * kBlock + 4096);
  EXPECT_EQ(file.take_next(6 * kBlock, 4 * kBlock).length, 0u);
  EXPECT_EQ(file.take_next(0, 4 * kBlock).length, 0u);
}

TEST(WantedBlocks, EmptyFileHasNoBlocks) {
  WantedBlocks file(0);
  file.want(0, 1);
  EXPECT_FALSE(file.any_wanted());
  EXPECT_EQ(file.take_next(0, kBlock).length, 0u);
  EXPECT_EQ(file.take_wanted(kBlock).length, 0u);
}

TEST(WantedBlocks, TakesEachBlockOnce) {
  WantedBlocks file(100 * kBlock);
  file.want(70 * kBlock + 5, 10);
  EXPECT_TRUE(file.any_wanted());
  EXPECT_EQ(blocks(file.take_wanted(16 * kBlock)), Blocks(70, 71));
  EXPECT_TRUE(file.any_wanted()) << "the block is not sent yet";
  file.wanted_sent();
  EXPECT_FALSE(file.any_wanted());
  file.want(70 * kBlock, kBlock);
  EXPECT_FALSE(file.any_wanted()) << "the block is taken";
  EXPECT_EQ(blocks(file.take_next(68 * kBlock, 16 * kBlock)), Blocks(68, 70));
  EXPECT_EQ(blocks(file.take_next(70 * kBlock, 4 * kBlock)), Blocks(71, 75));
}

TEST(WantedBlocks, BlockThatTheFirstPassTakesIsNoLongerWanted) {
  WantedBlocks file(10 * kBlock);
  file.want(3 * kBlock, 2 * kBlock);
  EXPECT_EQ(blocks(file.take_next(0, 4 * kBlock)), Blocks(0, 4));
  EXPECT_EQ(blocks(file.take_wanted(4 * kBlock)), Blocks(4, 5));
  EXPECT_EQ(file.take_wanted(4 * kBlock).length, 0u);
}

TEST(WantedBlocks, TakesAtLeastOneBlockIfASlotIsSmaller) {
  WantedBlocks file(2 * kBlock);
  EXPECT_EQ(blocks(file.take_next(0, kBlock + 100)), Blocks(0, 1));
}

TEST(WantedBlocks, ServesWantedBlocksInTurn) {
  WantedBlocks file(200 * kBlock);
  file.want(150 * kBlock, kBlock);
  EXPECT_EQ(blocks(file.take_wanted(kBlock)), Blocks(150, 151));
  file.want(10 * kBlock, 2 * kBlock);
  file.want(160 * kBlock, kBlock);
  file.want(199 * kBlock, 100 * kBlock);  // the part behind the end of the file has no effect
  EXPECT_EQ(blocks(file.take_wanted(16 * kBlock)), Blocks(160, 161));
  EXPECT_EQ(blocks(file.take_wanted(16 * kBlock)), Blocks(199, 200));
  EXPECT_EQ(blocks(file.take_wanted(kBlock)), Blocks(10, 11));
  EXPECT_EQ(blocks(file.take_wanted(kBlock)), Blocks(11, 12));
  file.wanted_sent();
  EXPECT_FALSE(file.any_wanted());
}

TEST(WantedBlocks, IgnoresRangesOutsideTheFile) {
  WantedBlocks file(64 * kBlock);
  file.want(64 * kBlock, 1);
  file.want(UINT64_MAX, UINT64_MAX);
  file.want(5, 0);
  EXPECT_FALSE(file.any_wanted());
  file.want(63 * kBlock + 1, UINT64_MAX);
  EXPECT_EQ(blocks(file.take_wanted(16 * kBlock)), Blocks(63, 64));
  file.wanted_sent();
  EXPECT_FALSE(file.any_wanted());
}

TEST(WantedBlocks, WaitsEndWhenABlockIsWantedOrAllAreSent) {
  WantedBlocks file(4 * kBlock);
  auto wanted = std::async(std::launch::async, [&] { return file.await_wanted(); });
  EXPECT_EQ(wanted.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  file.want(0, 1);
  EXPECT_TRUE(wanted.get());
  auto served = std::async(std::launch::async, [&] { file.await_none_wanted(); });
  EXPECT_EQ(served.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  (void)file.take_wanted(kBlock);
  EXPECT_EQ(served.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  file.wanted_sent();
  served.get();
  auto ended = std::async(std::launch::async, [&] { return file.await_wanted(); });
  file.finish();
  EXPECT_FALSE(ended.get());
  file.want(kBlock, 1);
  EXPECT_FALSE(file.any_wanted());
  file.await_none_wanted();
}

TEST(WantedBlocks, RandomRequestsDuringTheFirstPassCoverTheFileOnce) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const uint64_t count = 1 + random() % 300;
    WantedBlocks file(count * kBlock - random() % kBlock);
    std::vector<int> taken(count);
    const auto note = [&](const WantedBlocks::Part& part) {
      const auto [first, end] = blocks(part);
      for (uint64_t block = first; block < end; ++block) ++taken.at(block);
      return end * kBlock;
    };
    for (uint64_t offset = 0; offset < count * kBlock;) {
      for (uint32_t i = random() % 3; i > 0; --i) file.want(random() % (count * kBlock), random());
      for (uint32_t i = random() % 3; i > 0; --i) note(file.take_wanted(kBlock << random() % 5));
      file.wanted_sent();
      const auto next = file.take_next(offset, kBlock << random() % 5);
      if (next.length == 0) break;
      offset = note(next);
    }
    EXPECT_EQ(taken, std::vector<int>(count, 1)) << "seed " << seed;
    EXPECT_FALSE(file.any_wanted()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ppmr
