#include "preflight/rdma_release/rdma_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RdmaAbilities rxe(const std::string& name = "rxe0") {
  RdmaAbilities port;
  port.device = name;
  port.is_active = true;
  port.link_layer = "Ethernet";
  port.queue_pairs = 10;
  port.completion_queues = 10;
  port.shared_queues = 10;
  port.regions = 10;
  port.domains = 10;
  port.requests = 100;
  port.shared_requests = 100;
  port.completions = 100;
  port.pieces = 4;
  port.mtu_bytes = 1024;
  port.gid_kinds = {"ipv4/roce-v2", "link-local/roce-v2"};
  return port;
}

RdmaNeeds all_of_rxe() { return rxe(); }

TEST(RdmaCheck, AnswerIsRead) {
  const auto check = parse_rdma_check(
      "ppmr-rdma-check 1\nhindrance a peer does not answer (10.0.0.2, queue pair 17)\n"
      "shows-writes\nsomething new\n"
      "device mlx5_0 port=2 queue-pairs=3 regions=7 mtu=4096 link=Ethernet gid=ipv4/roce-v2 "
      "gid=other/roce-v2 future=9\n");
  ASSERT_TRUE(check);
  EXPECT_THAT(check->hindrances, ElementsAre("a peer does not answer (10.0.0.2, queue pair 17)"));
  EXPECT_TRUE(check->shows_writes);
  ASSERT_EQ(check->needs.size(), 1u);
  const RdmaNeeds& needs = check->needs.front();
  EXPECT_EQ(needs.device, "mlx5_0");
  EXPECT_EQ(needs.port, 2u);
  EXPECT_EQ(needs.queue_pairs, 3u);
  EXPECT_EQ(needs.regions, 7u);
  EXPECT_EQ(needs.mtu_bytes, 4096u);
  EXPECT_EQ(needs.link_layer, "Ethernet");
  EXPECT_THAT(needs.gid_kinds, ElementsAre("ipv4/roce-v2", "other/roce-v2"));
}

TEST(RdmaCheck, OtherAnswersAreNone) {
  for (const char* text : {"", "ok", "unknown request", "ppmr-rdma-check 2\n", "\n"})
    EXPECT_FALSE(parse_rdma_check(text)) << text;
}

TEST(RdmaCheck, AnswerOfAProcessIsBounded) {
  std::string text = "ppmr-rdma-check 1\n";
  for (int i = 0; i < 1000; ++i) text += "hindrance x\ndevice y queue-pairs=-1 regions=1x gid=a\n";
  const auto check = parse_rdma_check(text);
  ASSERT_TRUE(check);
  EXPECT_EQ(check->hindrances.size(), 64u);
  EXPECT_EQ(check->needs.size(), 64u);
  EXPECT_EQ(check->needs[0].queue_pairs, 0u);
  EXPECT_EQ(check->needs[0].regions, 0u);
}

TEST(RdmaCheck, DeviceWithTheSameLimitsLacksNothing) {
  EXPECT_THAT(what_rdma_lacks(all_of_rxe(), {rxe()}), IsEmpty());
}

TEST(RdmaCheck, EachLimitThatIsTooSmallIsNamed) {
  const std::pair<uint32_t RdmaNeeds::*, const char*> limits[] = {
      {&RdmaNeeds::queue_pairs, "at most 10 queue pairs, and 11 are needed"},
      {&RdmaNeeds::completion_queues, "at most 10 completion queues"},
      {&RdmaNeeds::shared_queues, "at most 10 shared receive queues"},
      {&RdmaNeeds::regions, "at most 10 memory regions"},
      {&RdmaNeeds::domains, "at most 10 protection domains"},
      {&RdmaNeeds::requests, "at most 100 work requests in a queue"},
      {&RdmaNeeds::shared_requests, "at most 100 work requests in a shared receive queue"},
      {&RdmaNeeds::completions, "at most 100 completions in a queue"},
      {&RdmaNeeds::pieces, "at most 4 pieces in a work request"},
      {&RdmaNeeds::mtu_bytes, "at most 1024 bytes in a packet"},
  };
  for (const auto& [member, text] : limits) {
    RdmaNeeds needs = all_of_rxe();
    ++(needs.*member);
    EXPECT_THAT(what_rdma_lacks(needs, {rxe()}), ElementsAre(HasSubstr(text)));
    RdmaAbilities silent = rxe();
    silent.*member = 0;
    EXPECT_THAT(what_rdma_lacks(needs, {silent}), IsEmpty()) << "a limit that is not known";
  }
}

TEST(RdmaCheck, ChoosesTheDeviceOfTheSameNameElseTheFirstActiveOne) {
  RdmaAbilities first = rxe("mlx5_0"), second = rxe("mlx5_1");
  first.is_active = false;
  EXPECT_THAT(what_rdma_lacks(all_of_rxe(), {first, second}), IsEmpty());
  second.is_active = false;
  EXPECT_THAT(what_rdma_lacks(all_of_rxe(), {first, second}),
              ElementsAre(HasSubstr("no active device")));
  second.is_active = true;
  RdmaNeeds needs = all_of_rxe();
  needs.device = "mlx5_0";
  EXPECT_THAT(what_rdma_lacks(needs, {first, second}),
              ElementsAre("port 1 of the target's device mlx5_0 is not active"));
  EXPECT_THAT(what_rdma_lacks(needs, {}), ElementsAre("the target has no RDMA device"));
  needs.port = 2;
  EXPECT_THAT(what_rdma_lacks(needs, {second}), ElementsAre(HasSubstr("a port 2")));
}

TEST(RdmaCheck, LinkLayerAndKindsOfGidsMustBeThere) {
  RdmaAbilities target = rxe();
  target.link_layer = "InfiniBand";
  target.gid_kinds = {"link-local/ib"};
  EXPECT_THAT(what_rdma_lacks(all_of_rxe(), {target}),
              ElementsAre("the target's device rxe0 is on InfiniBand, not on Ethernet",
                          HasSubstr("no GID of the kind ipv4/roce-v2 (it has link-local/ib)"),
                          HasSubstr("link-local/roce-v2")));
  // An older library does not know the types of GIDs.
  RdmaNeeds needs = all_of_rxe();
  needs.gid_kinds = {"ipv4/ib"};
  EXPECT_THAT(what_rdma_lacks(needs, {rxe()}), IsEmpty());
  needs.gid_kinds = {"other/ib"};
  EXPECT_THAT(what_rdma_lacks(needs, {rxe()}), ElementsAre(HasSubstr("other/ib")));
}

TEST(RdmaCheck, AddsTheCountsOfProcessesThatShareADevice) {
  RdmaNeeds sum;
  for (int i = 0; i < 2; ++i) {
    RdmaNeeds one = all_of_rxe();
    one.queue_pairs = 6;
    one.requests = 60;
    one.regions = UINT32_MAX;
    add_rdma_needs(one, sum);
  }
  EXPECT_EQ(sum.queue_pairs, 12u);
  EXPECT_EQ(sum.requests, 60u);
  EXPECT_EQ(sum.regions, UINT32_MAX);
}

TEST(RdmaCheck, KindOfAGidComesFromItsText) {
  EXPECT_EQ(rdma_gid_kind("::ffff:10.0.0.1", "RoCE v2"), "ipv4/roce-v2");
  EXPECT_EQ(rdma_gid_kind("fe80::1", "RoCE v1"), "link-local/roce-v1");
  EXPECT_EQ(rdma_gid_kind("2001:db8::1", "IB"), "other/ib");
}

}  // namespace
}  // namespace ppmr
