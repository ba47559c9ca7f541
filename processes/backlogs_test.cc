#include "processes/backlogs.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

uint64_t inode_of(const UniqueFd& file) {
  struct stat found {};
  fstat(file.get(), &found);
  return found.st_ino;
}

std::set<Backlog> backlogs_of(const std::set<uint64_t>& own) {
  const auto internet_sockets = read_internet_sockets(getpid());
  const auto unix_sockets = read_unix_sockets(getpid());
  EXPECT_TRUE(internet_sockets && unix_sockets);
  return find_backlogs(own, *internet_sockets, *unix_sockets);
}

std::set<BacklogKind> kinds_of(const std::set<Backlog>& backlogs) {
  std::set<BacklogKind> kinds;
  for (const Backlog& backlog : backlogs) kinds.insert(backlog.kind);
  return kinds;
}

// A listening socket and its client, which it has not accepted.
struct Waiting {
  UniqueFd listener, client;

  template <typename Address>
  Waiting(Address address, socklen_t size)
      : listener(socket(reinterpret_cast<sockaddr*>(&address)->sa_family, SOCK_STREAM, 0)),
        client(socket(reinterpret_cast<sockaddr*>(&address)->sa_family, SOCK_STREAM, 0)) {
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), name, size), 0);
    EXPECT_EQ(listen(listener.get(), 4), 0);
    size = sizeof(address);
    EXPECT_EQ(getsockname(listener.get(), name, &size), 0);
    EXPECT_EQ(connect(client.get(), name, size), 0);
  }
  std::set<uint64_t> both() const { return {inode_of(listener), inode_of(client)}; }
};

Waiting over_tcp() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return {address, sizeof(address)};
}

Waiting over_unix() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "backlog-" + std::to_string(getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size())};
}

TEST(Backlogs, TcpBacklogEndsWhenTheProgramAccepts) {
  const Waiting waiting = over_tcp();
  const auto found = backlogs_of(waiting.both());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->kind, BacklogKind::kTcp);
  EXPECT_EQ(found.begin()->socket, inode_of(waiting.listener));
  EXPECT_EQ(found.begin()->name.find("127.0.0.1:"), 0u);
  const UniqueFd accepted(accept(waiting.listener.get(), nullptr, nullptr));
  EXPECT_TRUE(backlogs_of(waiting.both()).empty());
}

TEST(Backlogs, BacklogsOfOtherProgramsAreNotFound) {
  const Waiting tcp = over_tcp(), local = over_unix();
  EXPECT_TRUE(backlogs_of({}).empty());
}

TEST(Backlogs, UnixConnectionWithDataIsFound) {
  const Waiting waiting = over_unix();
  EXPECT_TRUE(backlogs_of(waiting.both()).empty()) << "CRIU carries it";
  ASSERT_EQ(send(waiting.client.get(), "data", 4, 0), 4);
  const auto found = backlogs_of(waiting.both());
  EXPECT_EQ(kinds_of(found), std::set{BacklogKind::kUnixWithData});
  EXPECT_EQ(found.begin()->name, "@backlog-" + std::to_string(getpid()));
  const UniqueFd accepted(accept(waiting.listener.get(), nullptr, nullptr));
  EXPECT_TRUE(backlogs_of(waiting.both()).empty());
}

TEST(Backlogs, UnixConnectionIsFoundIfOneEndDoesNotMove) {
  const Waiting waiting = over_unix();
  EXPECT_EQ(kinds_of(backlogs_of({inode_of(waiting.listener)})),
            std::set{BacklogKind::kUnixFromElsewhere});
  EXPECT_EQ(kinds_of(backlogs_of({inode_of(waiting.client)})),
            std::set{BacklogKind::kUnixToElsewhere});
}

}  // namespace
}  // namespace ppmr
