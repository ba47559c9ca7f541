#include "rdma_stream/connection/peer_user.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "rdma_stream/connection/security.h"

namespace ppmr {
namespace {

constexpr uid_t kStranger = 65534;
constexpr std::chrono::milliseconds kPatience{5000};

SocketEnd end(const std::string& address, uint16_t port) {
  SocketEnd end{.port = port};
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &end.address), 1) << address;
  return end;
}

// In hexadecimal, port 7440 is 1D10, port 50000 is C350, and port 50001 is C351.
const std::string kTable =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n"
    "   0: 0100007F:1D10 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 71 "
    "1 0000000000000000 100 0 0 10 0\n"
    "   1: 0100007F:C350 0100007F:1D10 01 00000000:00000000 00:00000000 00000000  1001        0 72 "
    "1 0000000000000000 20 4 30 10 -1\n"
    "   2: 0100007F:1D10 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 73 "
    "1 0000000000000000 20 4 30 10 -1\n"
    "   3: 0100007F:1D10 0100007F:C351 01 00000000:00000000 00:00000000 00000000     0        0 0 "
    "1 0000000000000000 20 4 30 10 -1\n"
    "   4: 0100007F:C351 0100007F:1D10 04 00000000:00000000 00:00000000 00000000     0        0 0 "
    "1 0000000000000000 20 4 30 10 -1\n"
    "   5: 00000000000000000000000001000000:C350 00000000000000000000000001000000:1D10 01 "
    "00000000:00000000 00:00000000 00000000  1002        0 74 1 0000000000000000 20 4 30 10 -1\n"
    "   6: 0000000000000000FFFF00000100007F:C352 0000000000000000FFFF00000100007F:1D10 01 "
    "00000000:00000000 00:00000000 00000000  1003        0 75 1 0000000000000000 20 4 30 10 -1\n"
    "   7: nonsense\n";
const std::string kHere = "::ffff:127.0.0.1";

TEST(FindSocketUser, FindsTheUserOfTheOtherEnd) {
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 50000), end(kHere, 7440), false), 1001u);
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 7440), end(kHere, 50000), true), 1000u);
  EXPECT_EQ(find_socket_user(kTable, end("::1", 50000), end("::1", 7440), false), 1002u);
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 50002), end(kHere, 7440), false), 1003u);
}

// The kernel shows root as the user of sockets that no program has accepted.
TEST(FindSocketUser, ASocketNotYetAcceptedBelongsToItsListener) {
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 7440), end(kHere, 50001), true), 1000u);
}

TEST(FindSocketUser, ASocketThatAnotherUserHasAcceptedBelongsToItsListener) {
  std::string table = kTable;
  const std::string accepted = "0100007F:1D10 0100007F:C350 01";
  ASSERT_NE(table.find(accepted), std::string::npos);
  const size_t user = table.find(" 1000 ", table.find(accepted));
  table.replace(user, 6, " 2000 ");
  EXPECT_EQ(find_socket_user(table, end(kHere, 7440), end(kHere, 50000), true), 1000u);
}

TEST(FindSocketUser, AClosedSocketHasNoUser) {
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 50001), end(kHere, 7440), false), std::nullopt);
}

TEST(FindSocketUser, AnUnknownSocketHasNoUser) {
  EXPECT_EQ(find_socket_user(kTable, end(kHere, 50003), end(kHere, 7440), false), std::nullopt);
  EXPECT_EQ(find_socket_user(kTable, end("::ffff:127.0.0.2", 50000), end(kHere, 7440), false),
            std::nullopt);
  EXPECT_EQ(find_socket_user("", end(kHere, 50000), end(kHere, 7440), true), std::nullopt);
}

int port_of(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A process of another user that runs `body` and then waits until it is killed.
class Stranger {
 public:
  template <typename Body>
  explicit Stranger(Body body) {
    pid_ = fork();
    if (pid_ != 0) return;
    if (setuid(kStranger) != 0) _exit(1);
    body();
    pause();
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

struct WithoutKey : testing::Test {
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  }
};

TEST_F(WithoutKey, ATargetRefusesAnotherUser) {
  auto listener = std::move(Security::none()->listener("127.0.0.1:0").value());
  const int port = port_of(listener->address());
  const Stranger stranger([port] {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(port);
    connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  });
  std::shared_ptr<Connection> connection = std::move(listener->accept().value());
  const auto identified = listener->identify(connection, kPatience);
  ASSERT_FALSE(identified);
  EXPECT_EQ(identified.error().errno_value, EACCES);
  EXPECT_NE(identified.error().message.find("user 65534"), std::string::npos)
      << identified.error().message;
}

TEST_F(WithoutKey, ASourceRefusesATargetOfAnotherUser) {
  sockaddr_in address = loopback(0);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const Stranger stranger([&] {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener, 4) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        write(ready[1], &address, sizeof address) != sizeof address) {
      _exit(1);
    }
  });
  ASSERT_EQ(read(ready[0], &address, sizeof address), static_cast<ssize_t>(sizeof address));
  close(ready[0]);
  close(ready[1]);
  auto connector = std::move(
      Security::none()
          ->connector("127.0.0.1:" + std::to_string(ntohs(address.sin_port)), PeerRole::kSource)
          .value());
  const auto connected = connector->connect(kPatience);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().errno_value, EACCES) << connected.error().message;
}

TEST(WithoutKeyOfOneUser, BothEndsAccept) {
  auto listener = std::move(Security::none()->listener("127.0.0.1:0").value());
  auto connector =
      std::move(Security::none()->connector(listener->address(), PeerRole::kSource).value());
  auto connected = connector->connect(kPatience);
  ASSERT_TRUE(connected) << connected.error().message;
  std::shared_ptr<Connection> accepted = std::move(listener->accept().value());
  const std::byte hello{'P'};
  ASSERT_TRUE((*connected)->write({&hello, 1}));
  const auto identified = listener->identify(accepted, kPatience);
  EXPECT_TRUE(identified) << identified.error().message;
}

}  // namespace
}  // namespace ppmr
