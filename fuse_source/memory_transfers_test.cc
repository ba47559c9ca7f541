#include "fuse_source/memory_transfers.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr uint64_t kBlock = kWantedBlockBytes;
constexpr uint64_t kNode = 7;

bool yes() { return true; }

TEST(MemoryTransfers, PassesWantsToTheFileThatIsSent) {
  MemoryTransfers transfers;
  WantedBlocks blocks(4 * kBlock);
  ASSERT_TRUE(transfers.begin(kNode, blocks, 0));
  transfers.want({kNode, 2 * kBlock, 1}, yes);
  transfers.want({kNode + 1, 3 * kBlock, 1}, yes);
  EXPECT_EQ(blocks.take_wanted(4 * kBlock).offset, 2 * kBlock);
  blocks.wanted_sent();
  EXPECT_FALSE(blocks.any_wanted());
}

TEST(MemoryTransfers, RefusesASecondTransferToAFile) {
  MemoryTransfers transfers;
  WantedBlocks blocks(kBlock);
  ASSERT_TRUE(transfers.begin(kNode, blocks, 0));
  const Status second = transfers.begin(kNode, blocks, 0);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().errno_value, EBUSY);
  transfers.end(kNode);
  EXPECT_TRUE(transfers.begin(kNode, blocks, 0));
}

TEST(MemoryTransfers, KeepsWantsThatComeBeforeTheTransfer) {
  MemoryTransfers transfers;
  transfers.want({kNode, kBlock, 1}, yes);
  transfers.want({kNode, 3 * kBlock, 1}, [] { return false; });
  WantedBlocks blocks(4 * kBlock);
  ASSERT_TRUE(transfers.begin(kNode, blocks, 0));
  EXPECT_EQ(blocks.take_wanted(4 * kBlock).offset, kBlock);
  blocks.wanted_sent();
  EXPECT_FALSE(blocks.any_wanted()) << "no memory was going to be sent to it";
}

TEST(MemoryTransfers, KeepsTheNewestOfVeryManyEarlyWants) {
  constexpr uint64_t kMany = 5000;
  MemoryTransfers transfers;
  for (uint64_t i = 0; i < kMany; ++i) transfers.want({kNode, i * kBlock, 1}, yes);
  WantedBlocks blocks(kMany * kBlock);
  ASSERT_TRUE(transfers.begin(kNode, blocks, 0));
  EXPECT_EQ(blocks.take_wanted(kMany * kBlock).length, 4096 * kBlock);
}

// Each round of a live move sends behind the rounds before it.
TEST(MemoryTransfers, CountsWantsFromTheFirstBlockOfTheTransfer) {
  MemoryTransfers transfers;
  WantedBlocks blocks(2 * kBlock);
  ASSERT_TRUE(transfers.begin(kNode, blocks, 10 * kBlock));
  transfers.want({kNode, 3 * kBlock, kBlock}, yes);
  EXPECT_FALSE(blocks.any_wanted()) << "an earlier round has sent it";
  transfers.want({kNode, 9 * kBlock, 2 * kBlock}, yes);
  const auto taken = blocks.take_wanted(2 * kBlock);
  EXPECT_EQ(taken.offset, 0u);
  EXPECT_EQ(taken.length, kBlock);
  EXPECT_EQ(transfers.taken_bytes(kNode), 11 * kBlock);
  EXPECT_FALSE(transfers.taken_bytes(kNode + 1));
}

TEST(MemoryTransfers, LeavesHalfOfTheSlotsToFirstPasses) {
  MemoryTransfers transfers;
  EXPECT_FALSE(transfers.may_reserve(1));
  EXPECT_TRUE(transfers.may_reserve(5));
  EXPECT_TRUE(transfers.may_reserve(5));
  EXPECT_FALSE(transfers.may_reserve(5));
  transfers.drop_reserve();
  EXPECT_TRUE(transfers.may_reserve(5));
}

}  // namespace
}  // namespace ppmr
