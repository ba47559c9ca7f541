#include "processes/connections_in_repair.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "processes/test_process.h"

namespace ppmr {
namespace {

// A connection of this process to itself.
struct Pair {
  Pair() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener.get(), at, size) != 0 || listen(listener.get(), 1) != 0 ||
        getsockname(listener.get(), at, &size) != 0) {
      abort();
    }
    port = ntohs(address.sin_port);
    asks = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    if (connect(asks.get(), at, size) != 0) abort();
    answers = UniqueFd(accept(listener.get(), nullptr, nullptr));
  }
  UniqueFd asks, answers;
  uint16_t port = 0;
};

bool set_repair(int socket) {
  const int on = 1;
  return setsockopt(socket, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) == 0;
}

TEST(ConnectionsInRepair, AreFoundOnceAndGoOn) {
  const Pair pair;
  if (!set_repair(pair.answers.get())) GTEST_SKIP() << "needs root";
  const UniqueFd copy(dup(pair.answers.get()));
  const TestProcess holder;
  const ProcessIdentity task = identify(holder.pid()).value();
  // The child has the same sockets.
  const auto found = read_connections({task, identify_self()});
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 2u);
  const auto in_repair = std::find_if(found->begin(), found->end(),
                                      [](const TcpConnection& one) { return one.is_in_repair; });
  ASSERT_NE(in_repair, found->end());
  EXPECT_EQ(in_repair->process, task);
  EXPECT_EQ(text_of(in_repair->local), "127.0.0.1:" + std::to_string(pair.port));
  EXPECT_TRUE(text_of(in_repair->remote).starts_with("127.0.0.1:"));
  char byte = 0;
  ASSERT_EQ(send(pair.asks.get(), "x", 1, 0), 1);
  EXPECT_EQ(recv(pair.answers.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EPERM);
  const Status ended = end_repair(*in_repair);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(recv(pair.answers.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
  const auto afterwards = read_connections({task});
  ASSERT_TRUE(afterwards) << afterwards.error().message;
  for (const TcpConnection& one : *afterwards) EXPECT_FALSE(one.is_in_repair);
}

TEST(ConnectionsInRepair, EndedProcessHasNoConnections) {
  TestProcess process;
  const ProcessIdentity task = identify(process.pid()).value();
  process.end();
  const auto found = read_connections({task});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(found->empty());
}

TEST(ConnectionEnd, IsShownAsPeopleWriteIt) {
  EXPECT_EQ(text_of({std::string("\x0a\x00\x00\x01", 4), 80}), "10.0.0.1:80");
  EXPECT_EQ(text_of({std::string(15, '\0') + '\x01', 443}), "[::1]:443");
  EXPECT_EQ(text_of({}), "(no address)");
}

}  // namespace
}  // namespace ppmr
