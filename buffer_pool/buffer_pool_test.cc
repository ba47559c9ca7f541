#include "buffer_pool/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<BufferPool> pool_of(size_t slots) {
  return std::move(BufferPool::create(slots * kMiB, kMiB).value());
}

TEST(BufferPool, RefusesAPoolSmallerThanAChunk) {
  auto pool = BufferPool::create(kMiB - 1, kMiB);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().errno_value, EINVAL);
  EXPECT_NE(pool.error().message.find("smaller than a chunk"), std::string::npos);
}

TEST(BufferPool, RefusesChunkSizesOutOfRange) {
  EXPECT_FALSE(BufferPool::create(kMiB, 32 << 10));
  EXPECT_FALSE(BufferPool::create(4 * kMiB, 2 * kMiB));
  EXPECT_FALSE(BufferPool::create(kMiB, (64 << 10) + 1));
}

TEST(BufferPool, LeasesEverySlotAndFailsWhenNoneIsFree) {
  auto pool = pool_of(3);
  {
    SlotLease a = pool->try_acquire(), b = pool->try_acquire(), c = pool->try_acquire();
    EXPECT_TRUE(a && b && c);
    EXPECT_NE(a.index(), b.index());
    EXPECT_NE(b.index(), c.index());
    EXPECT_FALSE(pool->try_acquire());
    EXPECT_EQ(pool->counters().in_use, 3u);
  }
  EXPECT_EQ(pool->counters().free, 3u);
  EXPECT_EQ(pool->counters().in_use_max, 3u);
}

TEST(BufferPool, MovedLeaseReleasesOnce) {
  auto pool = pool_of(2);
  SlotLease first = pool->try_acquire();
  SlotLease second = std::move(first);
  EXPECT_FALSE(first);
  second = pool->try_acquire();  // releases the slot that it held
  EXPECT_EQ(pool->counters().in_use, 1u);
  second.release();
  second.release();
  EXPECT_EQ(pool->counters().free, 2u);
}

TEST(BufferPool, EveryLeaseOfASlotHasANewGenerationNumber) {
  auto pool = pool_of(1);
  const uint32_t before = pool->try_acquire().generation();
  EXPECT_EQ(pool->try_acquire().generation(), before + 1);
}

TEST(BufferPool, PayloadIsPageAlignedAfterTheFuseHeaders) {
  auto pool = pool_of(3);
  std::vector<SlotLease> leases;
  for (uint32_t i = 0; i < 3; ++i) {
    leases.push_back(pool->try_acquire());
    SlotLease& lease = leases.back();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lease.payload().data()) % kPageSizeBytes, 0u);
    EXPECT_EQ(lease.request_area().data() + kFuseWriteHeaderBytes, lease.payload().data());
    EXPECT_GE(lease.request_area().size(), kMiB + kPageSizeBytes);
    EXPECT_EQ(pool->slot_at(lease.request_area().data()), lease.index());
    EXPECT_EQ(pool->slot_at(&lease.payload().back()), lease.index());
    std::memset(lease.request_area().data(), 0xff, lease.request_area().size());
  }
  EXPECT_FALSE(pool->slot_at(&pool));
}

TEST(BufferPool, WipeClearsFreeSlotsNowAndLeasedSlotsWhenTheyAreReleased) {
  auto pool = pool_of(3);
  const auto has_bytes = [&](uint32_t slot) {
    const auto bytes = pool->payload(slot);
    return std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; });
  };
  SlotLease kept = pool->try_acquire();
  uint32_t freed = 0;
  {
    SlotLease lease = pool->try_acquire();
    freed = lease.index();
    for (const SlotLease* each : {&kept, &lease}) {
      std::fill(each->payload().begin(), each->payload().end(), std::byte{7});
    }
  }
  pool->wipe();
  EXPECT_FALSE(has_bytes(freed));
  EXPECT_TRUE(has_bytes(kept.index())) << "its lease has not ended";
  EXPECT_EQ(pool->counters().free, 2u);
  const uint32_t index = kept.index();
  kept.release();
  EXPECT_FALSE(has_bytes(index));
  SlotLease again = pool->try_acquire();
  again.payload()[0] = std::byte{1};
  const uint32_t later = again.index();
  again.release();
  EXPECT_TRUE(has_bytes(later)) << "wipe() clears only leases that began before it";
}

TEST(BufferPool, WaiterGetsTheReleasedSlot) {
  auto pool = pool_of(1);
  SlotLease held = pool->try_acquire();
  EXPECT_FALSE(pool->acquire(milliseconds(1)));
  std::thread releaser([&] { held.release(); });
  EXPECT_TRUE(pool->acquire(milliseconds(10'000)));
  releaser.join();
  EXPECT_GE(pool->counters().waits, 1u);
}

TEST(BufferPool, ServesWaitersInOrderOfArrival) {
  constexpr size_t kWaiters = 8;
  auto pool = pool_of(1);
  SlotLease held = pool->try_acquire();
  std::mutex mutex;
  std::vector<size_t> served;
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      // A waiter that calls `give_up` keeps its place in the queue.
      SlotLease lease = pool->acquire(milliseconds(1), [] { return false; });
      std::lock_guard lock(mutex);
      served.push_back(i);
    });
    while (pool->counters().waits < i + 1) std::this_thread::yield();
  }
  held.release();
  for (auto& waiter : waiters) waiter.join();
  for (size_t i = 0; i < kWaiters; ++i) EXPECT_EQ(served[i], i);
}

TEST(BufferPool, PassesReleasedSlotToWaiterBeforeNewCaller) {
  auto pool = pool_of(1);
  SlotLease held = pool->try_acquire();
  std::atomic<bool> checked = false;
  std::atomic<bool> released = false;
  std::thread waiter([&] {
    SlotLease lease = pool->acquire(milliseconds(1), [&] {
      checked = true;
      // This thread does not wait in the pool at this moment.
      while (!released) std::this_thread::yield();
      EXPECT_FALSE(pool->try_acquire());
      return false;
    });
    EXPECT_TRUE(lease);
  });
  while (!checked) std::this_thread::yield();
  const auto before = pool->last_release();
  held.release();
  released = true;
  waiter.join();
  EXPECT_GT(pool->last_release(), before);
}

TEST(BufferPool, ThreadsNeverShareASlot) {
  auto pool = pool_of(4);
  std::vector<std::atomic<int>> users(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        SlotLease lease = pool->acquire(milliseconds(10'000));
        ASSERT_TRUE(lease);
        EXPECT_EQ(users[lease.index()].fetch_add(1), 0);
        users[lease.index()].fetch_sub(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->counters().free, 4u);
}

}  // namespace
}  // namespace ppmr
