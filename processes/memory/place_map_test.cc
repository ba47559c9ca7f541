#include "processes/memory/place_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace ppmr {
namespace {

using Parts = std::vector<std::tuple<uint64_t, uint64_t, uint64_t>>;  // done bytes, length, place

class PlaceMapTest : public testing::Test {
 protected:
  Parts map(uint64_t place, uint64_t length) {
    Parts parts;
    places_.map(
        place, length,
        [this](uint64_t, uint64_t bytes) { return std::exchange(next_, next_ + bytes); },
        [&](uint64_t done, uint64_t bytes, uint64_t at) { parts.emplace_back(done, bytes, at); });
    return parts;
  }

  PlaceMap places_;
  uint64_t next_ = 0;
};

TEST_F(PlaceMapTest, FirstRangeDecides) {
  EXPECT_EQ(map(100, 10), (Parts{{0, 10, 0}}));
  EXPECT_EQ(map(105, 10), (Parts{{0, 5, 5}, {5, 5, 10}}));
  EXPECT_EQ(map(90, 40), (Parts{{0, 10, 15}, {10, 10, 0}, {20, 5, 10}, {25, 15, 25}}));
  EXPECT_EQ(map(95, 1), (Parts{{0, 1, 20}}));
  EXPECT_EQ(map(500, 0), Parts{});
}

TEST_F(PlaceMapTest, RandomPlacesAreMappedOneToOne) {
  std::mt19937 random(1);
  std::map<uint64_t, uint64_t> new_of;
  std::map<uint64_t, uint64_t> old_of;
  for (int i = 0; i < 300; ++i) {
    const uint64_t from = random() % 1000;
    const uint64_t length = random() % 30;
    uint64_t expected = 0;
    for (const auto& [done, bytes, place] : map(from, length)) {
      EXPECT_EQ(done, expected);
      expected += bytes;
      for (uint64_t at = 0; at < bytes; ++at) {
        EXPECT_EQ(new_of.emplace(from + done + at, place + at).first->second, place + at);
        EXPECT_EQ(old_of.emplace(place + at, from + done + at).first->second, from + done + at);
      }
    }
    EXPECT_EQ(expected, length);
  }
  EXPECT_EQ(next_, new_of.size()) << "places without gaps";
}

}  // namespace
}  // namespace ppmr
