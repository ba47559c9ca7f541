#include "fuse_target/store/store_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>

namespace ppmr {
namespace {

constexpr size_t kLimit = 16 * kExtentBytes;

std::unique_ptr<StoreMemory> make_store(StoreOptions options,
                                        std::function<void()> freed = nullptr) {
  auto store = StoreMemory::create(options, std::move(freed));
  EXPECT_TRUE(store);
  return std::move(*store);
}

template <typename Condition>
bool becomes_true(Condition condition) {
  for (int i = 0; i < 500 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return condition();
}

TEST(StoreMemory, RefusesALimitBelowTheMinimum) {
  auto store = StoreMemory::create({kLimitMinBytes - 1, 0, 0}, nullptr);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().errno_value, EINVAL);
}

TEST(StoreMemory, AllocatesUpToTheLimit) {
  auto store = make_store({kLimit, 0, 0});
  std::vector<BlockRef> blocks;
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  EXPECT_EQ(blocks.size(), kLimit / kExtentBytes);
  EXPECT_FALSE(store->allocate(1));
  EXPECT_EQ(store->counters().used_bytes, kLimit);
}

TEST(StoreMemory, ReservesPartOfTheMemoryForBounceBlocks) {
  auto store = make_store({kLimit, 0, 2 * kExtentBytes});
  std::vector<BlockRef> blocks;
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  EXPECT_EQ(blocks.size(), kLimit / kExtentBytes - 2);
  BlockRef first = store->allocate_bounce();
  BlockRef second = store->allocate_bounce();
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_FALSE(store->allocate_bounce());
}

TEST(StoreMemory, PromisedExtentsStayFreeForTheirCharge) {
  auto store = make_store({kLimit, 0, 0});
  StoreCharge promised = store->charge(4 * kExtentBytes);
  ASSERT_TRUE(promised);
  std::vector<BlockRef> others;
  while (BlockRef block = store->allocate(kExtentBytes)) others.push_back(std::move(block));
  EXPECT_EQ(others.size(), kLimit / kExtentBytes - 4);
  EXPECT_FALSE(store->allocate(1));
  std::vector<BlockRef> own;
  while (BlockRef block = store->allocate(kExtentBytes, &promised)) own.push_back(std::move(block));
  EXPECT_EQ(own.size(), 4U);
  EXPECT_EQ(promised.bytes(), 0U);
  EXPECT_EQ(store->counters().charged_bytes, 0U);
}

TEST(StoreMemory, ReservesPartOfTheMemoryForCharges) {
  StoreOptions options{kLimit, 0, 2 * kExtentBytes};
  options.for_charges_bytes = kExtentBytes;
  auto store = make_store(options);
  std::vector<BlockRef> blocks;
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  while (BlockRef block = store->allocate_bounce()) blocks.push_back(std::move(block));
  EXPECT_EQ(blocks.size(), kLimit / kExtentBytes - 1);
  const StoreCharge names = store->charge(kExtentBytes);
  EXPECT_TRUE(names);
  EXPECT_FALSE(store->charge(1));
}

TEST(StoreMemory, BlocksGetTheMemoryThatIsNotCharged) {
  auto store = make_store({kLimit, 0, 0});
  std::vector<StoreCharge> charges;
  charges.push_back(store->charge(kExtentBytes + 1));  // takes two extents
  std::vector<BlockRef> blocks;
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  EXPECT_EQ(blocks.size(), kLimit / kExtentBytes - 2);
  EXPECT_TRUE(store->charge(kExtentBytes - 1));
  EXPECT_FALSE(store->charge(kExtentBytes));
  EXPECT_EQ(store->counters().charged_bytes, kExtentBytes + 1);
  charges.clear();
  EXPECT_EQ(store->counters().charged_bytes, 0);
  EXPECT_TRUE(store->allocate(kExtentBytes));
}

TEST(StoreMemory, EndOfAChargeAnnouncesFreedSpace) {
  std::atomic<int> announced = 0;
  auto store = make_store({kLimit, 0, 0}, [&] { ++announced; });
  {
    const StoreCharge all = store->charge(kLimit);
    ASSERT_TRUE(all);
    EXPECT_FALSE(store->allocate(1));
  }
  EXPECT_TRUE(becomes_true([&] { return announced == 1; }));
}

TEST(StoreMemory, ReusesTheExtentThatWasFreedLast) {
  auto store = make_store({kLimit, kLimit, 0});
  BlockRef first = store->allocate(kExtentBytes);
  BlockRef second = store->allocate(kExtentBytes);
  std::byte* const place = first.bytes().data();
  place[0] = std::byte{42};
  first.reset();
  BlockRef again = store->allocate(kExtentBytes);
  EXPECT_EQ(again.bytes().data(), place);
  EXPECT_EQ(place[0], std::byte{42}) << "the extent was touched again";
}

TEST(StoreMemory, TouchesFreeMemoryBeforeItIsAllocated) {
  auto store = make_store({kLimit, 4 * kExtentBytes, 0});
  EXPECT_TRUE(becomes_true([&] { return store->counters().ready_bytes == 4 * kExtentBytes; }));
  BlockRef block = store->allocate(kExtentBytes);
  EXPECT_TRUE(becomes_true([&] { return store->counters().ready_bytes == 4 * kExtentBytes; }));
}

TEST(StoreMemory, DoesNotTouchFreeMemoryWhileReadsAreServed) {
  auto store = make_store({kLimit, 4 * kExtentBytes, 0});
  ASSERT_TRUE(becomes_true([&] { return store->counters().ready_bytes == 4 * kExtentBytes; }));
  BlockRef block = store->allocate(kExtentBytes);
  for (int i = 0; i < 100; ++i) {
    store->note_use();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(store->counters().ready_bytes, 3 * kExtentBytes);
  }
  EXPECT_TRUE(becomes_true([&] { return store->counters().ready_bytes == 4 * kExtentBytes; }));
}

TEST(StoreMemory, RefillsTheReserveWhenAUseEnds) {
  auto store = make_store({2 * kLimit, kLimit, 0});
  const auto ready_extents = [&] { return store->counters().ready_bytes / kExtentBytes; };
  ASSERT_TRUE(becomes_true([&] { return ready_extents() == 16; }));
  StoreUse use = store->begin_use();
  BlockRef block = store->allocate(kExtentBytes);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // longer than the store's idle time
  EXPECT_EQ(ready_extents(), 15U);
  use = StoreUse();
  EXPECT_TRUE(becomes_true([&] { return ready_extents() == 16; }));
}

TEST(StoreMemory, RefillsAScarceReserveDuringAUse) {
  auto store = make_store({2 * kLimit, kLimit, 0});
  const auto ready_extents = [&] { return store->counters().ready_bytes / kExtentBytes; };
  ASSERT_TRUE(becomes_true([&] { return ready_extents() == 16; }));
  const StoreUse use = store->begin_use();
  std::vector<BlockRef> blocks;
  for (int i = 0; i < 15; ++i) blocks.push_back(store->allocate(kExtentBytes));
  EXPECT_TRUE(becomes_true([&] { return ready_extents() > 1; }));
}

// Returns all memory of a store, with its pages touched.
std::vector<BlockRef> all_of(StoreMemory& store) {
  std::vector<BlockRef> blocks;
  while (BlockRef block = store.allocate(kExtentBytes)) {
    MappedMemory::touch(block.bytes());
    blocks.push_back(std::move(block));
  }
  return blocks;
}

uint64_t shared_resident_kib() {
  std::ifstream status("/proc/self/status");
  uint64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "RssShmem:") status >> kib;
  }
  return kib;
}

TEST(StoreMemory, GivesBackFreeMemoryBeyondTheReserve) {
  auto store = make_store({.limit_bytes = 4 * kRegionBytes,
                           .ready_bytes = kRegionBytes,
                           .give_back_after = std::chrono::milliseconds(10)});
  for (int round = 0; round < 3; ++round) {
    std::vector<BlockRef> blocks = all_of(*store);
    ASSERT_EQ(blocks.size() * kExtentBytes, 4 * kRegionBytes);
    const uint64_t full_kib = shared_resident_kib();
    BlockRef kept = blocks[5];
    kept.bytes()[0] = std::byte{42};
    blocks.clear();
    EXPECT_TRUE(becomes_true([&] { return store->counters().ready_bytes < 2 * kRegionBytes; }));
    EXPECT_GE(store->counters().ready_bytes, kRegionBytes);
    EXPECT_TRUE(
        becomes_true([&] { return shared_resident_kib() + (2 * kRegionBytes >> 10) <= full_kib; }));
    EXPECT_EQ(kept.bytes()[0], std::byte{42});
  }
}

TEST(StoreMemory, KeepsMemoryThatADeviceHasRegistered) {
  auto store = make_store({.limit_bytes = 4 * kRegionBytes,
                           .ready_bytes = kRegionBytes,
                           .gives_back = false,
                           .give_back_after = std::chrono::milliseconds(0)});
  all_of(*store).clear();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(store->counters().ready_bytes, 4 * kRegionBytes);
}

TEST(StoreMemory, PlacesSmallBlocksInOneExtentWithoutOverlap) {
  auto store = make_store({kLimit, 0, 0});
  std::vector<BlockRef> blocks;
  for (int i = 0; i < 512; ++i) blocks.push_back(store->allocate(4096));
  EXPECT_EQ(store->counters().used_bytes, kExtentBytes);
  for (int i = 0; i < 512; ++i) {
    std::fill(blocks[i].bytes().begin(), blocks[i].bytes().end(), static_cast<std::byte>(i));
  }
  for (int i = 0; i < 512; ++i) {
    ASSERT_EQ(blocks[i].bytes().size(), 4096u);
    ASSERT_EQ(blocks[i].bytes().front(), static_cast<std::byte>(i));
    ASSERT_EQ(blocks[i].bytes().back(), static_cast<std::byte>(i));
  }
  blocks.clear();
  EXPECT_EQ(store->counters().used_bytes, 0u);
}

TEST(StoreMemory, FreesABlockWithItsLastReference) {
  auto store = make_store({kLimit, 0, 0});
  BlockRef block = store->allocate(4096);
  BlockRef copy = block;
  block.reset();
  EXPECT_EQ(store->counters().used_bytes, kExtentBytes);
  const uint32_t id = copy.detach();
  EXPECT_EQ(store->counters().used_bytes, kExtentBytes) << "the id holds a reference";
  store->adopt(id).reset();
  EXPECT_EQ(store->counters().used_bytes, 0u);
}

TEST(StoreMemory, ReportsFreedSpaceOnceAfterAFailedAllocation) {
  std::atomic<int> notified = 0;
  auto store = make_store({kLimit, 0, 0}, [&] { ++notified; });
  std::vector<BlockRef> blocks;
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  EXPECT_EQ(notified, 0);
  blocks.pop_back();
  EXPECT_TRUE(becomes_true([&] { return notified == 1; }));
  blocks.pop_back();  // no allocation has failed since then
  while (BlockRef block = store->allocate(kExtentBytes)) blocks.push_back(std::move(block));
  blocks.pop_back();
  EXPECT_TRUE(becomes_true([&] { return notified >= 2; }));
  blocks.clear();
  store.reset();  // ends the thread that calls the function
  EXPECT_EQ(notified, 2);
}

TEST(StoreMemory, SupportsManyThreads) {
  auto store = make_store({.limit_bytes = 8 * kRegionBytes,
                           .ready_bytes = kExtentBytes,
                           .give_back_after = std::chrono::milliseconds(0)});
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<BlockRef> mine;
      for (int i = 0; i < 2000; ++i) {
        if (i % 500 == 499) mine.clear();  // enough memory to give back
        if (random() % 4 != 0 || mine.empty()) {
          if (BlockRef block = store->allocate(size_t{4096} << (random() % 10))) {
            block.bytes().front() = static_cast<std::byte>(seed);
            mine.push_back(std::move(block));
          }
        } else {
          const size_t i_gone = random() % mine.size();
          EXPECT_EQ(mine[i_gone].bytes().front(), static_cast<std::byte>(seed));
          mine.erase(mine.begin() + static_cast<ptrdiff_t>(i_gone));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->counters().used_bytes, 0u);
}

}  // namespace
}  // namespace ppmr
