#include "restart_loader/images/bound_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/unique_fd.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kFilesMagic = 0x56303138;

criu::socket_file_entry entry(int family, int type, uint32_t state, uint32_t port,
                              const std::string& address) {
  criu::socket_file_entry file;
  criu::inet_sk_entry& socket = *file.mutable_isk();
  socket.set_family(static_cast<uint32_t>(family));
  socket.set_type(static_cast<uint32_t>(type));
  socket.set_state(state);
  socket.set_src_port(port);
  std::array<uint32_t, 4> words{};
  EXPECT_EQ(inet_pton(family, address.c_str(), words.data()), 1);
  for (int i = 0; i < (family == AF_INET ? 1 : 4); ++i) {
    socket.add_src_addr(words[static_cast<size_t>(i)]);
  }
  return file;
}

class BoundSockets : public testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  std::vector<BoundSocket> read(const std::vector<criu::socket_file_entry>& files,
                                uint32_t network = 0) {
    ImageWriter image(kFilesMagic);
    for (const auto& file : files) image.add(file);
    EXPECT_TRUE(image.write(path_));
    auto sockets = read_bound_sockets(path_, network);
    EXPECT_TRUE(sockets);
    return sockets.value_or(std::vector<BoundSocket>());
  }
  const std::string path_ = testing::TempDir() + "files-" + std::to_string(getpid());
};

TEST_F(BoundSockets, AreThoseThatOthersReach) {
  const auto sockets = read({{},  // no socket
                             entry(AF_INET, SOCK_STREAM, 10, 80, "127.0.0.1"),
                             entry(AF_INET, SOCK_STREAM, 1, 81, "127.0.0.1"),  // a connection
                             entry(AF_INET6, SOCK_DGRAM, 7, 53, "::1"),
                             entry(AF_INET, SOCK_DGRAM, 7, 0, "0.0.0.0"),
                             entry(AF_INET, SOCK_STREAM, 10, 70'000, "127.0.0.1"),
                             entry(AF_INET6, SOCK_STREAM, 10, 80, "fe80::1")});
  ASSERT_EQ(sockets.size(), 2u);
  sockaddr_in first{};
  std::memcpy(&first, &sockets[0].address, sizeof first);
  EXPECT_EQ(ntohs(first.sin_port), 80);
  EXPECT_EQ(first.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  sockaddr_in6 second{};
  std::memcpy(&second, &sockets[1].address, sizeof second);
  EXPECT_EQ(ntohs(second.sin6_port), 53);
  EXPECT_TRUE(IN6_IS_ADDR_LOOPBACK(&second.sin6_addr));
}

TEST_F(BoundSockets, AddressThatNeedsAnInterfaceIsLeftOut) {
  const auto sockets = read({entry(AF_INET6, SOCK_DGRAM, 7, 5353, "ff02::fb"),
                             entry(AF_INET6, SOCK_DGRAM, 7, 5353, "ff01::1"),
                             entry(AF_INET6, SOCK_DGRAM, 7, 5353, "ff05::1"),
                             entry(AF_INET, SOCK_DGRAM, 7, 5353, "224.0.0.251")});
  ASSERT_EQ(sockets.size(), 2u);
  EXPECT_TRUE(check_free(sockets[0]));
  EXPECT_TRUE(check_free(sockets[1]));
}

TEST_F(BoundSockets, SocketOfAnotherNetworkNamespaceIsLeftOut) {
  auto here = entry(AF_INET, SOCK_STREAM, 10, 80, "127.0.0.1");
  auto there = entry(AF_INET, SOCK_STREAM, 10, 81, "127.0.0.1");
  here.mutable_isk()->set_ns_id(2);
  there.mutable_isk()->set_ns_id(12);
  EXPECT_EQ(read({here, there}).size(), 2u);
  EXPECT_EQ(read({here, there}, 2).size(), 1u);
}

TEST_F(BoundSockets, AddressWithTooFewWordsIsNone) {
  auto file = entry(AF_INET6, SOCK_STREAM, 10, 80, "::1");
  file.mutable_isk()->mutable_src_addr()->RemoveLast();
  EXPECT_TRUE(read({file}).empty());
}

TEST_F(BoundSockets, ImageOfAnotherKindIsRefused) {
  std::ofstream(path_) << "no image";
  EXPECT_EQ(read_bound_sockets(path_).error().errno_value, EPROTO);
}

TEST_F(BoundSockets, AddressOfAnotherNodeIsNamed) {
  // TEST-NET-1 (RFC 5737): no node has it.
  const Status free = check_free(read({entry(AF_INET, SOCK_STREAM, 10, 80, "192.0.2.7")}).at(0));
  ASSERT_FALSE(free);
  EXPECT_EQ(free.error().errno_value, EADDRNOTAVAIL);
  EXPECT_NE(free.error().message.find("192.0.2.7:80"), std::string::npos) << free.error().message;
}

TEST_F(BoundSockets, PortInUseIsNamedAndAFreeOneIsFree) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    address.sin_port = 0;
    UniqueFd other(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    if (type == SOCK_STREAM) {
      ASSERT_EQ(listen(other.get(), 1), 0);
    }
    const uint32_t state = type == SOCK_STREAM ? 10 : 7;
    const auto wanted =
        read({entry(AF_INET, type, state, ntohs(address.sin_port), "127.0.0.1")}).at(0);
    const Status free = check_free(wanted);
    ASSERT_FALSE(free);
    EXPECT_EQ(free.error().errno_value, EADDRINUSE);
    other.reset();
    EXPECT_TRUE(check_free(wanted));
  }
}

}  // namespace
}  // namespace ppmr
