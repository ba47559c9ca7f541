#include "verbs_library/protocol/key_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ppmr::verbs {
namespace {

TEST(KeyTable, IsTheIdentityWithoutEntries) {
  const KeyTable table;
  EXPECT_TRUE(table.is_empty());
  EXPECT_EQ(table.real(0x1234), 0x1234u);
  EXPECT_FALSE(table.is_taken(0x1234));
}

TEST(KeyTable, TranslatesItsEntriesAndNothingElse) {
  std::mt19937 random(7);
  std::map<uint32_t, uint32_t> expected;
  std::vector<KeyPair> keys;
  for (int i = 0; i < 1000; ++i) {
    const KeyPair key{static_cast<uint32_t>(random()) % 5000, static_cast<uint32_t>(random())};
    expected[key.shown] = key.real;
    keys.push_back(key);
  }
  const KeyTable table(keys);
  for (uint32_t shown = 0; shown < 6000; ++shown) {
    const auto found = expected.find(shown);
    EXPECT_EQ(table.is_taken(shown), found != expected.end());
    EXPECT_EQ(table.real(shown), found != expected.end() ? found->second : shown);
  }
}

TEST(KeyTable, KnowsKeysThatCollideWithEachOther) {
  // Two regions that have exchanged their numbers.
  const KeyTable table(std::vector<KeyPair>{{5, 7}, {7, 5}});
  EXPECT_EQ(table.real(5), 7u);
  EXPECT_EQ(table.real(7), 5u);
}

}  // namespace
}  // namespace ppmr::verbs
