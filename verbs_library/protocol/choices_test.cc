#include "verbs_library/protocol/choices.h"

#include <gtest/gtest.h>

namespace ppmr::verbs {
namespace {

Gid ipv4(uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
Gid link_local(uint8_t last) { return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }
Gid private_ipv6(uint8_t last) { return {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }

const GidEntry kBefore{.index = 3, .gid = ipv4(1), .type = 2};

TEST(ChooseGid, PrefersTheSameAddress) {
  const auto chosen = choose_gid(kBefore, {{3, ipv4(2), 2}, {5, ipv4(1), 2}});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->index, 5u);
}

TEST(ChooseGid, PrefersTheSameIndexOfTheSameKind) {
  const auto chosen = choose_gid(kBefore, {{1, ipv4(2), 2}, {3, ipv4(3), 2}});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->index, 3u);
}

TEST(ChooseGid, TakesNoOtherKindAndNoOtherType) {
  const auto chosen = choose_gid(
      kBefore, {{3, link_local(1), 2}, {4, ipv4(2), 1}, {5, private_ipv6(1), 2}, {6, ipv4(9), 2}});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->index, 6u);
  EXPECT_FALSE(choose_gid(kBefore, {{3, link_local(1), 2}, {4, ipv4(2), 1}}));
}

TEST(ChooseGid, IgnoresEntriesThatAreNotSet) {
  EXPECT_FALSE(choose_gid({.index = 0, .gid = private_ipv6(1), .type = 0}, {{0, Gid{}, 0}}));
}

TEST(ChooseDevice, PrefersTheNameThenAnActiveOne) {
  EXPECT_EQ(choose_device("rxe0", {{"mlx5_0", true}, {"rxe0", false}}), 1u);
  EXPECT_EQ(choose_device("rxe0", {{"mlx5_0", false}, {"mlx5_1", true}}), 1u);
  EXPECT_FALSE(choose_device("rxe0", {{"mlx5_0", false}}));
  EXPECT_FALSE(choose_device("rxe0", {}));
}

TEST(ChooseControlIp, TakesAnAddressThatOtherMachinesCanReach) {
  EXPECT_EQ(choose_control_ip({link_local(1), private_ipv6(2), ipv4(3)}), "10.0.0.3");
  EXPECT_EQ(choose_control_ip({link_local(1), private_ipv6(2)}), "fd00::2");
  EXPECT_FALSE(choose_control_ip({link_local(1)}));
}

}  // namespace
}  // namespace ppmr::verbs
