#include "restart_loader/criu/network_lock.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

TcpConnection connection(const std::string& local, const std::string& remote) {
  return {{}, true, UniqueFd(), {local, 9999}, {remote, 35496}};
}

const std::string kOurs("\x0a\x4d\x01\x01", 4), kTheirs("\x0a\x4d\x01\x02", 4);

// As `iptables -S` prints the rules of CRIU 4.2.1.
constexpr const char* kRules =
    "-P INPUT ACCEPT\n"
    "-A INPUT -s 10.77.1.2/32 -d 10.77.1.1/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 35496 "
    "--dport 9999 -j DROP\n"
    "-A INPUT -s 10.77.1.2/32 -d 10.77.1.1/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 35497 "
    "--dport 9999 -j DROP\n"
    "-A OUTPUT -s 10.77.1.1/32 -d 10.77.1.2/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 9999 "
    "--dport 35496 -j DROP\n";

TEST(NetworkLock, IsUndoneRuleByRule) {
  const auto commands = commands_to_unlock(connection(kOurs, kTheirs), kRules);
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(fmt::format("{}", fmt::join(commands[0], " ")),
            "iptables -w -t filter -D INPUT -s 10.77.1.2/32 -d 10.77.1.1/32 -p tcp -m mark ! "
            "--mark 0xc114 -m tcp --sport 35496 --dport 9999 -j DROP");
  EXPECT_EQ(commands[1][5], "OUTPUT");
}

TEST(NetworkLock, LockOfOtherConnectionsStays) {
  EXPECT_TRUE(commands_to_unlock(connection(kTheirs, kOurs), kRules).empty());
  EXPECT_TRUE(commands_to_unlock(connection(kOurs, kTheirs), "").empty());
}

TEST(NetworkLock, LockOfIpv6IsUndoneByItsOwnProgram) {
  const std::string local = std::string(15, '\0') + '\x01', remote = std::string(15, '\0') + '\x02';
  const auto commands = commands_to_unlock(
      connection(local, remote),
      "-A INPUT -s ::2/128 -d ::1/128 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 35496 --dport "
      "9999 -j DROP\n");
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].front(), "ip6tables");
}

// conns4 { 10.77.1.2 . 35496 . 10.77.1.1 . 9999 }
TEST(NetworkLock, LockOfNftablesIsFoundByTheConnection) {
  EXPECT_EQ(
      nft_element_of(connection(kOurs, kTheirs)),
      kTheirs + std::string("\x8a\xa8\x00\x00", 4) + kOurs + std::string("\x27\x0f\x00\x00", 4));
}

}  // namespace
}  // namespace ppmr
