#include "fuse_source/slot_buffers.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr size_t kChunk = size_t{64} << 10;

class SlotBuffersTest : public testing::Test {
 protected:
  SlotBuffersTest() { buffers.set_ready(); }

  const void* payload_of(std::span<std::byte> area) { return area.data() + kFuseWriteHeaderBytes; }

  std::unique_ptr<BufferPool> pool = std::move(BufferPool::create(2 * kChunk, kChunk).value());
  SlotBuffers buffers{*pool};
};

TEST_F(SlotBuffersTest, ASlotThatNobodyAdoptsIsFreeAgain) {
  auto worker = buffers.make();
  worker->take();
  EXPECT_EQ(pool->counters().in_use, 1u);
  worker->give_back();
  EXPECT_EQ(pool->counters().in_use, 0u);
}

TEST_F(SlotBuffersTest, AnAdoptedSlotStaysItsAdopters) {
  auto worker = buffers.make();
  SlotLease adopted = buffers.adopt(payload_of(worker->take()));
  ASSERT_TRUE(adopted);
  worker->give_back();
  EXPECT_EQ(pool->counters().in_use, 1u);
}

// The slot of the first worker's request travels, comes back and is lent to the second worker, all
// before the first is done with its request.
TEST_F(SlotBuffersTest, GivingBackDoesNotTouchASlotThatWasAdoptedAndLentAgain) {
  auto first = buffers.make();
  auto second = buffers.make();
  const auto area = first->take();
  buffers.adopt(payload_of(area)).release();
  const auto again = second->take();
  ASSERT_EQ(again.data(), area.data());
  first->give_back();
  EXPECT_EQ(pool->counters().in_use, 1u);
  EXPECT_TRUE(buffers.adopt(payload_of(again)));
}

TEST_F(SlotBuffersTest, WithoutAFreeSlotRequestsGoToASpareBuffer) {
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  auto worker = buffers.make();
  const auto area = worker->take();
  EXPECT_GE(area.size(), kRequestMinBytes);
  EXPECT_FALSE(pool->slot_at(area.data()));
  EXPECT_FALSE(buffers.adopt(payload_of(area)));
}

TEST_F(SlotBuffersTest, OnlyTheFirstWorkerWaitsLongForASlotOfAStalledStream) {
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  auto worker = buffers.make();
  constexpr int kRequests = 40;
  for (int i = 0; i < kRequests; ++i) {
    worker->take();
    worker->give_back();
  }
  EXPECT_LT(pool->counters().wait_time_us, kRequests * 10'000u);  // each in vain: 20 ms
  two.release();
  EXPECT_TRUE(buffers.adopt(payload_of(worker->take()))) << "it uses slots again";
}

TEST_F(SlotBuffersTest, BeforeTheLimitsAreAgreedOnNoSlotIsUsed) {
  SlotBuffers early{*pool};
  auto worker = early.make();
  worker->take();
  EXPECT_EQ(pool->counters().in_use, 0u);
}

}  // namespace
}  // namespace ppmr
