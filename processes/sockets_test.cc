#include "processes/sockets.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

uint64_t inode_of(int fd) {
  struct stat file {};
  fstat(fd, &file);
  return file.st_ino;
}

TEST(InternetSockets, ParsesAddressesOfBothFamilies) {
  const auto sockets = parse_internet_sockets(
      "  sl  local_address rem_address   st\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1138 1\n"
      "   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A "
      "00000000:00000000 00:00000000 00000000 0 0 1139 1\n"
      "   2: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000200007F:0051 01 "
      "00000000:00000000 00:00000000 00000000 0 0 1140 1\n"
      "   3: garbage\n",
      "tcp");
  ASSERT_EQ(sockets.size(), 3u);
  EXPECT_EQ(sockets[0].local_address, "127.0.0.1");
  EXPECT_EQ(sockets[0].local_port, 8080);
  EXPECT_TRUE(sockets[0].listens());
  EXPECT_EQ(sockets[0].inode, 1138u);
  EXPECT_EQ(sockets[1].local_address, "::1");
  EXPECT_EQ(sockets[2].local_address, "127.0.0.1");
  EXPECT_EQ(sockets[2].remote_address, "127.0.0.2");
  EXPECT_TRUE(sockets[2].is_connection());
}

TEST(InternetSockets, ListsAListenerOfThisProcess) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const auto sockets = read_internet_sockets(getpid());
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  const auto found = std::find_if(sockets->begin(), sockets->end(), [&](const auto& socket) {
    return socket.inode == inode_of(listener.get());
  });
  ASSERT_NE(found, sockets->end());
  EXPECT_TRUE(found->listens());
  EXPECT_EQ(found->local_address, "127.0.0.1");
}

TEST(UnixSockets, EachSocketOfAPairHasTheOtherAsItsPeer) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd left(ends[0]), right(ends[1]);
  const auto sockets = read_unix_sockets(getpid());
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  ASSERT_TRUE(sockets->contains(inode_of(left.get())));
  EXPECT_EQ(sockets->at(inode_of(left.get())).peer, inode_of(right.get()));
  EXPECT_EQ(sockets->at(inode_of(right.get())).peer, inode_of(left.get()));
  EXPECT_EQ(sockets->at(inode_of(left.get())).type, SOCK_STREAM);
}

}  // namespace
}  // namespace ppmr
