#include "restart_loader/criu/left_locks.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

const std::string kOurs("\x0a\x4d\x01\x01", 4), kTheirs("\x0a\x4d\x01\x02", 4);
const std::string kLoopback("\x7f\x00\x00\x01", 4);
const LockedConnection kMoved{{kOurs, 9999}, {kTheirs, 35496}};

InternetSocket socket_of(const std::string& local, uint16_t local_port, const std::string& remote,
                         uint16_t remote_port) {
  return {.protocol = "tcp",
          .local_address = local,
          .local_port = local_port,
          .remote_address = remote,
          .remote_port = remote_port,
          .state = 1};
}

// As `iptables -S` prints the rules of CRIU 4.2.1, and rules of others.
TEST(LeftLocks, AreFoundOnceForEachConnection) {
  const auto found = parse_locks(
      "-P INPUT ACCEPT\n"
      "-A INPUT -s 10.77.1.2/32 -d 10.77.1.1/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport "
      "35496 --dport 9999 -j DROP\n"
      "-A OUTPUT -s 10.77.1.1/32 -d 10.77.1.2/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport "
      "9999 --dport 35496 -j DROP\n"
      "-A INPUT -s 10.77.1.2/32 -d 10.77.1.1/32 -p tcp -m tcp --sport 35497 --dport 9999 -j DROP\n"
      "-A INPUT -m mark --mark 0xc114 -j ACCEPT\n"
      "-A INPUT -s ::2/128 -d ::1/128 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 35496 --dport "
      "9999 -j DROP\n");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_of(found[0]), "10.77.1.1:9999 - 10.77.1.2:35496");
  EXPECT_EQ(text_of(found[1]), "[::1]:9999 - [::2]:35496");
}

TEST(LeftLocks, MalformedRulesAreIgnored) {
  for (const char* rule :
       {"-A INPUT -s x -d 10.77.1.1/32 -m mark ! --mark 0xc114 --sport 1 --dport 2 -j DROP\n",
        "-A INPUT -s 10.77.1.2/32 -m mark ! --mark 0xc114 --sport 1 --dport 2 -j DROP\n",
        "-A INPUT -s 10.77.1.2 -d 10.77.1.1 -m mark ! --mark 0xc114 --sport 99999 -j DROP\n",
        "-A OUTPUT -m mark ! --mark 0xc114 -j DROP\n", "0xc114 -j DROP"}) {
    EXPECT_TRUE(parse_locks(rule).empty()) << rule;
  }
}

// conns4 { 10.77.1.2 . 35496 . 10.77.1.1 . 9999 }
TEST(LeftLocks, NftablesLocksNameTheirTable) {
  const std::string element =
      kTheirs + std::string("\x8a\xa8\x00\x00", 4) + kOurs + std::string("\x27\x0f\x00\x00", 4);
  const auto found = parse_nft_element(element, "CRIU-17");
  ASSERT_TRUE(found);
  EXPECT_EQ(text_of(*found), text_of(kMoved));
  EXPECT_EQ(found->table, "CRIU-17");
  for (const size_t bytes : {0, 1, 8, 15, 17, 64}) {
    EXPECT_FALSE(parse_nft_element(std::string(bytes, 'x'), "CRIU-17")) << bytes;
  }
}

TEST(LeftLocks, AreNeededWhileTheAddressIsHere) {
  EXPECT_FALSE(is_unneeded(kMoved, {kOurs, kLoopback}, {}));
  EXPECT_TRUE(is_unneeded(kMoved, {kLoopback}, {}));
  EXPECT_TRUE(is_unneeded(kMoved, {kTheirs}, {}));
}

TEST(LeftLocks, LockOfALocalConnectionIsNeededWhileASocketHasEitherEnd) {
  const LockedConnection own{{kLoopback, 80}, {kLoopback, 4000}};
  const std::set<std::string> addresses{kOurs};
  EXPECT_TRUE(is_unneeded(own, addresses, {}));
  EXPECT_TRUE(is_unneeded(own, addresses, {socket_of("127.0.0.1", 80, "127.0.0.1", 4001)}));
  EXPECT_FALSE(is_unneeded(own, addresses, {socket_of("127.0.0.1", 80, "127.0.0.1", 4000)}));
  EXPECT_FALSE(is_unneeded(own, addresses, {socket_of("127.0.0.1", 4000, "127.0.0.1", 80)}));
  EXPECT_FALSE(
      is_unneeded(own, addresses, {socket_of("::ffff:127.0.0.1", 4000, "::ffff:127.0.0.1", 80)}));
}

}  // namespace
}  // namespace ppmr
