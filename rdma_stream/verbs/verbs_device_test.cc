#include "rdma_stream/verbs/verbs_device.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

RdmaPort port() {
  RdmaPort port;
  port.state = "active";
  port.reads_served_max = port.reads_started_max = 16;
  port.addresses.emplace_back();
  return port;
}

TEST(RdmaPorts, PortThatCanBeUsedHasNoObjection) { EXPECT_EQ(objection_to(port(), ""), ""); }

// With iWARP the peer answers a read by a write, so sources could damage each other's images.
TEST(RdmaPorts, IwarpIsRefused) {
  RdmaPort iwarp = port();
  iwarp.is_iwarp = true;
  EXPECT_NE(objection_to(iwarp, "").find("iWARP"), std::string::npos);
}

TEST(RdmaPorts, ObjectionNamesWhatThePortLacks) {
  RdmaPort down = port();
  down.state = "down";
  EXPECT_EQ(objection_to(down, ""), "the port is down");
  EXPECT_EQ(objection_to(port(), "no rdma_cm"), "no rdma_cm");
  RdmaPort no_reads = port();
  no_reads.reads_served_max = 0;
  EXPECT_EQ(objection_to(no_reads, ""), "it does not support RDMA READ");
  RdmaPort no_address = port();
  no_address.addresses.clear();
  EXPECT_NE(objection_to(no_address, "").find("no IP address"), std::string::npos);
}

}  // namespace
}  // namespace ppmr
