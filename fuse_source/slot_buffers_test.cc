#include "fuse_source/slot_buffers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

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

TEST_F(SlotBuffersTest, ReleasesSlotAfterTheRequestIfNoWriteTookOverTheLease) {
  auto worker = buffers.make();
  worker->take();
  EXPECT_EQ(pool->counters().in_use, 1u);
  worker->give_back();
  EXPECT_EQ(pool->counters().in_use, 0u);
}

TEST_F(SlotBuffersTest, KeepsSlotAfterTheRequestIfAWriteTookOverTheLease) {
  auto worker = buffers.make();
  SlotLease adopted = buffers.adopt(payload_of(worker->take()));
  ASSERT_TRUE(adopted);
  worker->give_back();
  EXPECT_EQ(pool->counters().in_use, 1u);
}

// The slot of the first worker's request is adopted, released, and lent to the second worker before
// the first worker has finished its request.
TEST_F(SlotBuffersTest, WorkerThatFinishesDoesNotReleaseASlotNowUsedByAnotherWorker) {
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

TEST_F(SlotBuffersTest, UsesSpareBufferWhenNoSlotIsFree) {
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  auto worker = buffers.make();
  const auto area = worker->take();
  EXPECT_GE(area.size(), kRequestMinBytes);
  EXPECT_FALSE(pool->slot_at(area.data()));
  EXPECT_FALSE(buffers.adopt(payload_of(area)));
}

TEST_F(SlotBuffersTest, WhileTheStreamStallsOnlyTheFirstRequestWaitsLongForASlot) {
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  auto worker = buffers.make();
  constexpr int kRequests = 40;
  for (int i = 0; i < kRequests; ++i) {
    worker->take();
    worker->give_back();
  }
  // If each request waited for a slot, each would take 20 ms.
  EXPECT_LT(pool->counters().wait_time_us, kRequests * 20'000u);
  two.release();
  EXPECT_TRUE(buffers.adopt(payload_of(worker->take()))) << "it uses slots again";
}

TEST_F(SlotBuffersTest, RequestTakesASpareBufferAtOnceWhileManyWritersWaitForSlots) {
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  auto worker = buffers.make();
  worker->take();  // this worker finds the stream stalled
  worker->give_back();
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back(
        [&] { pool->acquire(std::chrono::milliseconds(1), [&] { return stop.load(); }); });
  }
  while (pool->waiting() < writers.size()) std::this_thread::yield();
  const uint64_t waits_before = pool->counters().waits;
  EXPECT_FALSE(pool->slot_at(worker->take().data()));
  EXPECT_EQ(pool->counters().waits, waits_before);
  stop = true;
  for (auto& writer : writers) writer.join();
}

TEST_F(SlotBuffersTest, UsesNoSlotBeforeTheRequestSizeLimitIsNegotiated) {
  SlotBuffers early{*pool};
  auto worker = early.make();
  worker->take();
  EXPECT_EQ(pool->counters().in_use, 0u);
}

TEST_F(SlotBuffersTest, ShortensBlockedWritesWhenTheyHoldTooMuchMemory) {
  constexpr size_t kWriteBytes = size_t{1} << 20;
  constexpr size_t kFit = SlotBuffers::kKeptMaxBytes / kWriteBytes;
  SlotLease one = pool->try_acquire();
  SlotLease two = pool->try_acquire();
  std::vector<std::unique_ptr<RequestBuffer>> workers;
  std::deque<KeptBytes> kept;
  for (size_t i = 0; i < 2 * kFit; ++i) {
    workers.push_back(buffers.make());
    const auto area = workers.back()->take().subspan(kFuseWriteHeaderBytes, kWriteBytes);
    std::memset(area.data(), 1, area.size());
    kept.push_back(buffers.keep(area));
    ASSERT_EQ(kept.back().bytes().size(), i < kFit ? kWriteBytes : SlotBuffers::kKeptSmallBytes);
    EXPECT_EQ(kept.back().bytes().back(), std::byte{1}) << "the kept bytes are intact";
    EXPECT_EQ(area[kWriteBytes / 2], std::byte{i < kFit}) << "a short write frees the rest";
  }
  const auto small = workers.back()->take().subspan(kFuseWriteHeaderBytes, 4096);
  EXPECT_EQ(buffers.keep(small).bytes().size(), small.size());
  kept.pop_front();
  const auto large = workers.back()->take().subspan(kFuseWriteHeaderBytes, kWriteBytes);
  EXPECT_EQ(buffers.keep(large).bytes().size(), kWriteBytes) << "the first write got its slot";
}

}  // namespace
}  // namespace ppmr
