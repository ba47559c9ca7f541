#include "rdma_stream/connection/tcp_connection.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

std::vector<std::byte> bytes_of(uint8_t value, size_t length) {
  return std::vector<std::byte>(length, std::byte{value});
}

TEST(TcpConnection, RejectsMalformedAddresses) {
  for (const char* address : {"", "host", "host:", "host:port", "host:99999", "host:123456"}) {
    auto connector = tcp_connector(address);
    ASSERT_FALSE(connector) << address;
    EXPECT_EQ(connector.error().errno_value, EINVAL);
    EXPECT_FALSE(tcp_listener(address)) << address;
    EXPECT_FALSE(check_address(address)) << address;
  }
}

TEST(TcpConnection, ListenerWithoutAHostTakesIPv4AndShowsThePeerAsIPv4) {
  auto listener = tcp_listener(":0");
  ASSERT_TRUE(listener) << listener.error().message;
  const std::string bound = (*listener)->address();
  auto connector = tcp_connector("127.0.0.1" + bound.substr(bound.rfind(':')));
  auto connection = (*connector)->connect(milliseconds(2000));
  ASSERT_TRUE(connection) << connection.error().message;
  const auto accepted = (*listener)->accept();
  ASSERT_TRUE(accepted);
  EXPECT_TRUE((*accepted)->peer().starts_with("127.0.0.1:")) << (*accepted)->peer();
}

TEST(TcpConnection, ConnectErrorNamesTheAddressThatRefused) {
  auto address = (*tcp_listener("127.0.0.1:0"))->address();
  auto connection = (*tcp_connector(address))->connect(milliseconds(2000));
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().errno_value, ECONNREFUSED);
  EXPECT_NE(connection.error().message.find(address), std::string::npos);
}

// An error of the name service says nothing about the host, so its errno differs from those of
// connect(2).
TEST(TcpConnection, NameWithoutAddressIsNotAHostThatCannotBeReached) {
  const auto connection = (*tcp_connector("no-such-host.invalid:1"))->connect(milliseconds(2000));
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().errno_value, kNoAddress) << connection.error().message;
  EXPECT_NE(connection.error().message.find("no-such-host.invalid:1"), std::string::npos);
}

TEST(TcpConnection, ErrorOfTheNameServiceNamesTheRemedy) {
  const Error no_answer = no_address_error("h:1", EAI_AGAIN);
  EXPECT_EQ(no_answer.errno_value, kNoAddress);
  EXPECT_NE(no_answer.message.find("check this node's name service"), std::string::npos);
  EXPECT_NE(no_answer.message.find("correct the name"), std::string::npos);
  const Error unknown = no_address_error("h:1", EAI_NONAME);
  EXPECT_EQ(unknown.errno_value, kNoAddress);
  EXPECT_EQ(unknown.message.find("name service"), std::string::npos)
      << "another error: " << unknown.message;
}

TEST(TcpConnection, RefusesASecondListenerOnAPort) {
  auto first = tcp_listener("127.0.0.1:0");
  auto second = tcp_listener((*first)->address());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().errno_value, EADDRINUSE);
  EXPECT_NE(second.error().message.find("ss -lntp"), std::string::npos) << second.error().message;
}

TEST(TcpConnection, WriteTimesOutWhenThePeerDoesNotRead) {
  auto listener = tcp_listener("127.0.0.1:0");
  auto writer = (*tcp_connector((*listener)->address()))->connect(milliseconds(2000));
  auto reader = (*listener)->accept();
  (*writer)->set_write_timeout(milliseconds(50));
  const auto bytes = bytes_of(1, 64 << 20);
  const Status written = (*writer)->write(std::span<const std::byte>(bytes));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().errno_value, ETIMEDOUT);
}

// Ends this process, with status 0 if a read ends soon after the peer has become silent. Uses a new
// network namespace, and makes the peer silent by shutting the loopback device down.
[[noreturn]] void read_from_a_silent_peer() {
  const auto set_loopback = [](bool up) {
    const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = up ? IFF_UP : 0;
    return ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
  };
  if (unshare(CLONE_NEWNET) != 0 || !set_loopback(true)) _exit(1);
  auto listener = tcp_listener("127.0.0.1:0");
  if (!listener) _exit(2);
  auto reader = (*tcp_connector((*listener)->address()))->connect(milliseconds(2000));
  if (!reader) _exit(3);
  const auto peer = (*listener)->accept();
  (*reader)->set_read_timeout(milliseconds(60'000));
  (*reader)->set_silence_max(milliseconds(2000));
  if (!set_loopback(false)) _exit(4);
  std::byte byte{};
  const auto began = std::chrono::steady_clock::now();
  const Status read = (*reader)->read({&byte, 1});
  if (read || read.error().errno_value != ETIMEDOUT) _exit(5);
  _exit(std::chrono::steady_clock::now() - began < milliseconds(10'000) ? 0 : 6);
}

TEST(TcpConnection, ReadEndsSoonAfterThePeerHasBecomeSilent) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: a peer that becomes silent (needs root)";
  EXPECT_EXIT(read_from_a_silent_peer(), testing::ExitedWithCode(0), "");
}

// Returns the number of bytes that the socket between these ports has received and its process has
// not read.
size_t unread_bytes(int local_port, int remote_port) {
  std::ifstream sockets("/proc/net/tcp");  // columns: sl local rem st tx_queue:rx_queue ...
  for (std::string line; std::getline(sockets, line);) {
    unsigned local = 0, remote = 0, sent = 0, received = 0;
    if (std::sscanf(line.c_str(), " %*u: %*8X:%4X %*8X:%4X %*X %8X:%8X", &local, &remote, &sent,
                    &received) == 4 &&
        local == static_cast<unsigned>(local_port) &&
        remote == static_cast<unsigned>(remote_port)) {
      return received;
    }
  }
  return SIZE_MAX;
}

int port_of(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

struct TcpPair {
  TcpPair() {
    auto listener = tcp_listener("127.0.0.1:0");
    port = port_of((*listener)->address());
    writer = *(*tcp_connector((*listener)->address()))->connect(milliseconds(2000));
    reader = *(*listener)->accept();
    reader->set_read_timeout(milliseconds(5000));
  }
  Status read_some(std::span<std::byte> bytes) {
    iovec buffer{bytes.data(), bytes.size()};
    return reader->read({&buffer, 1}, received_bytes);
  }

  size_t unread() const { return unread_bytes(port, port_of(reader->peer())); }

  int port = 0;
  std::unique_ptr<Connection> writer;
  std::unique_ptr<Connection> reader;
  size_t received_bytes = 0;
};

// A long read waits for many bytes at once. It must not wait for more than the rest, and must leave
// later bytes to the next read.
TEST(TcpConnection, LongReadOfBytesInPiecesTakesNoBytesOfTheNextRead) {
  TcpPair tcp;
  const auto bytes = bytes_of(1, (1 << 20) + 300'000 + 1);
  std::thread writer([&, reader = ::gettid()] {
    std::span<const std::byte> left(bytes);
    for (const size_t piece : {1, 255 << 10, 1 << 10, 300'000, 70'000, 200'000, 1, 399'999}) {
      EXPECT_TRUE(tcp.writer->write(left.first(piece)));
      left = left.subspan(piece);
      EXPECT_TRUE(eventually([&] { return thread_sleeps(reader); }));
    }
    EXPECT_TRUE(tcp.writer->write(left.first(left.size() - 1)));
    EXPECT_TRUE(tcp.writer->write(left.last(1)));
  });
  std::vector<std::byte> got(bytes.size());
  const std::span<std::byte> all(got);
  size_t done = 0;
  for (const size_t length : {size_t{1} << 20, size_t{16}, size_t{64} << 10, size_t{100'000}}) {
    ASSERT_TRUE(tcp.read_some(all.subspan(done, length)));
    done += length;
  }
  ASSERT_TRUE(tcp.read_some(all.subspan(done)));
  writer.join();
  EXPECT_EQ(got, bytes);
}

TEST(TcpConnection, LongReadTimesOutWithoutBytes) {
  TcpPair tcp;
  tcp.reader->set_read_timeout(milliseconds(30));
  std::vector<std::byte> bytes(1 << 20);
  EXPECT_EQ(tcp.read_some(bytes).error().errno_value, ETIMEDOUT);
  EXPECT_EQ(tcp.received_bytes, 0u);
}

TEST(TcpConnection, LongReadOnASlowLinkSucceedsIfSomeBytesArrivePerTimeout) {
  TcpPair tcp;
  tcp.reader->set_read_timeout(milliseconds(200));
  const auto bytes = bytes_of(1, 400'000);
  std::thread writer([&] {
    for (size_t sent = 0; sent < bytes.size(); sent += 100'000) {
      EXPECT_TRUE(tcp.writer->write(std::span(bytes).subspan(sent, 100'000)));
      // After its timeout the reader takes these bytes, although they are fewer than it waits for.
      EXPECT_TRUE(eventually([&] { return tcp.unread() == 0; }));
    }
  });
  std::vector<std::byte> got(bytes.size());
  EXPECT_TRUE(tcp.read_some(got));
  writer.join();
  EXPECT_EQ(got, bytes);
}

TEST(TcpConnection, LongReadFailsWhenTheConnectionCloses) {
  TcpPair tcp;
  ASSERT_TRUE(tcp.writer->write(bytes_of(1, 100'000)));
  tcp.writer.reset();
  std::vector<std::byte> bytes(1 << 20);
  EXPECT_EQ(tcp.read_some(bytes).error().errno_value, ECONNRESET);
  std::thread closer([&] { tcp.reader->shut_down(); });
  EXPECT_FALSE(tcp.read_some(bytes));
  closer.join();
}

TEST(TcpConnection, ClosingTheListenerEndsAccept) {
  auto listener = tcp_listener("[::1]:0");
  if (!listener) GTEST_SKIP() << "no IPv6: " << listener.error().message;
  std::thread closer([&] { (*listener)->close(); });
  EXPECT_EQ((*listener)->accept().error().errno_value, ECANCELED);
  closer.join();
}

}  // namespace
}  // namespace ppmr
