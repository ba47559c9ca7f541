#include "daemon/metrics/loopback_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

using ::testing::HasSubstr;

TEST(LoopbackListener, AcceptsLoopbackAddresses) {
  EXPECT_TRUE(check_metrics_address("127.0.0.1:9440"));
  EXPECT_TRUE(check_metrics_address("127.1.2.3:1"));
  EXPECT_TRUE(check_metrics_address("[::1]:65535"));
}

TEST(LoopbackListener, RefusesAddressesThatOtherMachinesReachAndNamesARemedy) {
  for (const char* address : {"0.0.0.0:9440", "10.0.0.2:9440", "[::]:9440", "[fe80::1]:9440"}) {
    const Status checked = check_metrics_address(address);
    ASSERT_FALSE(checked) << address;
    EXPECT_EQ(checked.error().errno_value, EINVAL);
    EXPECT_THAT(checked.error().message, HasSubstr("use 127.0.0.1:9440"));
  }
}

TEST(LoopbackListener, RefusesTextThatIsNoAddress) {
  for (const char* address :
       {"", "9440", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:94x",
        "localhost:9440", "::1:9440", "[::1:9440", "unix:/run/ppmr/metrics"}) {
    const Status checked = check_metrics_address(address);
    ASSERT_FALSE(checked) << address;
    EXPECT_THAT(checked.error().message, HasSubstr("127.0.0.1:PORT")) << address;
  }
}

TEST(LoopbackListener, ReportsAnAddressInUse) {
  // These ports are below the range from which the kernel assigns ports.
  for (int port = 20001; port < 20100; ++port) {
    const std::string address = "127.0.0.1:" + std::to_string(port);
    const auto first = listen_on_loopback(address);
    if (!first) continue;
    const auto second = listen_on_loopback(address);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().errno_value, EADDRINUSE);
    EXPECT_THAT(second.error().message, HasSubstr(address));
    return;
  }
  FAIL() << "no free port";
}

}  // namespace
}  // namespace ppmr
