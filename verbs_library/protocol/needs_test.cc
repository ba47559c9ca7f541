#include "verbs_library/protocol/needs.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

namespace ppmr::verbs {
namespace {

TEST(Needs, NumbersOfTwoContextsAreAddedAndTheLargestSizesAreTaken) {
  DeviceNeeds sum;
  sum.device = "mlx5_0";
  sum.queue_pairs = 3;
  sum.regions = 10;
  sum.requests = 64;
  sum.mtu_bytes = 1024;
  sum.gid_kinds = {"ipv4/roce-v2"};
  DeviceNeeds more;
  more.queue_pairs = 2;
  more.regions = 1;
  more.requests = 128;
  more.pieces = 4;
  more.inline_bytes = 96;
  more.link_layer = "Ethernet";
  more.gid_kinds = {"link-local/roce-v2"};
  add(more, sum);
  EXPECT_EQ(format(sum),
            "device mlx5_0 port=1 queue-pairs=5 completion-queues=0 shared-queues=0 regions=11 "
            "domains=0 requests=128 shared-requests=0 completions=0 pieces=4 inline=96 mtu=1024 "
            "link=Ethernet gid=ipv4/roce-v2 gid=link-local/roce-v2\n");
}

TEST(Needs, KindOfAGidIsItsAddressAndItsType) {
  GidEntry four;
  four.gid[10] = four.gid[11] = 0xff;
  four.gid[12] = 10;
  four.type = IBV_GID_TYPE_ROCE_V2;
  EXPECT_EQ(gid_kind(four), "ipv4/roce-v2");
  GidEntry local;
  local.gid[0] = 0xfe;
  local.gid[1] = 0x80;
  local.type = IBV_GID_TYPE_ROCE_V1;
  EXPECT_EQ(gid_kind(local), "link-local/roce-v1");
  GidEntry other;
  other.gid[0] = 0x20;
  EXPECT_EQ(gid_kind(other), "other/ib");
}

}  // namespace
}  // namespace ppmr::verbs
