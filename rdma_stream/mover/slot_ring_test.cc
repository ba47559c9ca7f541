#include "rdma_stream/mover/slot_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace ppmr {
namespace {

TEST(SlotRing, KeepsOrderAcrossWraparound) {
  SlotRing ring(3);
  for (uint32_t round = 0; round < 10; ++round) {
    ring.push_back(round);
    ring.push_back(round + 1);
    EXPECT_EQ(ring.pop_front(), round);
    ring.push_front(round + 2);
    EXPECT_EQ(ring.pop_front(), round + 2);
    EXPECT_EQ(ring.pop_front(), round + 1);
    EXPECT_TRUE(ring.empty());
  }
}

TEST(SlotRing, TakesOutMatchingSlotsInOrder) {
  SlotRing from(6), to(6);
  for (uint32_t slot = 0; slot < 6; ++slot) from.push_back(slot);
  from.move_to(to, [](uint32_t slot) { return slot % 2 == 1; });
  for (uint32_t slot : {1u, 3u, 5u}) EXPECT_EQ(to.pop_front(), slot);
  for (uint32_t slot : {0u, 2u, 4u}) EXPECT_EQ(from.pop_front(), slot);
}

TEST(SlotRing, FindsOnlyTheSlotsItHolds) {
  SlotRing ring(2);
  ring.push_back(4);
  ring.push_back(5);
  ring.pop_front();
  EXPECT_TRUE(ring.any_of([](uint32_t slot) { return slot == 5; }));
  EXPECT_FALSE(ring.any_of([](uint32_t slot) { return slot == 4; }));
}

TEST(SlotRing, BehavesLikeADeque) {
  std::mt19937 random(1);
  SlotRing ring(5);
  std::deque<uint32_t> model;
  for (uint32_t step = 0; step < 10'000; ++step) {
    const bool full = model.size() == 5;
    switch (random() % 4) {
      case 0:
        if (!full) ring.push_back(step), model.push_back(step);
        break;
      case 1:
        if (!full) ring.push_front(step), model.push_front(step);
        break;
      case 2:
        if (model.empty()) break;
        ASSERT_EQ(ring.pop_back(), model.back());
        model.pop_back();
        break;
      default:
        if (model.empty()) break;
        ASSERT_EQ(ring.pop_front(), model.front());
        model.pop_front();
    }
    ASSERT_EQ(ring.size(), model.size());
  }
}

}  // namespace
}  // namespace ppmr
