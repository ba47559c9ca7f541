#include "jobs/node/waiting_connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/unique_fd.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr const char* kHead =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";

TEST(WaitingPorts, ArePortsOfListenersWithAQueue) {
  const std::string table =
      std::string(kHead) +
      "   0: 0200000A:2328 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0\n"
      "   1: 0200000A:2329 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
      "   2: 0200000A:232A 0300000A:8A00 01 00000000:00000007 00:00000000 00000000     0\n";
  EXPECT_EQ(waiting_ports(table), std::vector<uint16_t>{9000});
}

TEST(WaitingPorts, AreAlsoReadFromTheTableOfIPv6) {
  EXPECT_EQ(waiting_ports("   0: 00000000000000000000000000000000:1F90 "
                          "00000000000000000000000000000000:0000 0A 00000000:00000002 00:0\n"),
            std::vector<uint16_t>{8080});
}

TEST(WaitingPorts, MalformedLinesAreIgnored) {
  for (const char* line : {"", "\n\n", "0: x y 0A z", "0: 1:2 3:4 0A", kHead}) {
    EXPECT_TRUE(waiting_ports(line).empty()) << line;
  }
}

// Reads the kernel's own table, to detect a kernel that has changed the column.
TEST(WaitingPorts, ConnectionThatIsNotAcceptedIsFound) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener.get(), any, size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), any, &size), 0);
  const auto waits = [&] {
    const auto ports = waiting_ports(read_whole_file("/proc/thread-self/net/tcp").value());
    return std::count(ports.begin(), ports.end(), ntohs(address.sin_port)) == 1;
  };
  EXPECT_FALSE(waits());
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), any, size), 0);
  EXPECT_TRUE(waits());
  const UniqueFd accepted(accept(listener.get(), nullptr, nullptr));
  EXPECT_FALSE(waits());
}

}  // namespace
}  // namespace ppmr
