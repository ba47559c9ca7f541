#include "restart_loader/criu/network_lock.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace ppmr {
namespace {

ConnectionInRepair connection(const std::string& local, const std::string& remote) {
  return {{}, UniqueFd(), {local, 9999}, {remote, 35496}};
}

const std::string kOurs("\x0a\x4d\x01\x01", 4), kTheirs("\x0a\x4d\x01\x02", 4);

// The rules are those of CRIU 4.2.1, from its log, with -D in place of -I.
TEST(NetworkLock, IsUndoneRuleByRule) {
  const auto commands = commands_to_unlock(connection(kOurs, kTheirs));
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(fmt::format("{}", fmt::join(commands[0], " ")),
            "iptables -w -t filter -D INPUT --protocol tcp -m mark ! --mark 0xC114 "
            "--source 10.77.1.2 --sport 35496 --destination 10.77.1.1 --dport 9999 -j DROP");
  EXPECT_EQ(fmt::format("{}", fmt::join(commands[1], " ")),
            "iptables -w -t filter -D OUTPUT --protocol tcp -m mark ! --mark 0xC114 "
            "--source 10.77.1.1 --sport 9999 --destination 10.77.1.2 --dport 35496 -j DROP");
}

TEST(NetworkLock, OfIpv6IsUndoneByItsOwnProgram) {
  const std::string local = std::string(15, '\0') + '\x01', remote = std::string(15, '\0') + '\x02';
  const auto commands = commands_to_unlock(connection(local, remote));
  EXPECT_EQ(commands[0].front(), "ip6tables");
  EXPECT_EQ(fmt::format("{}", fmt::join(commands[0], " ")).find("--source ::2 --sport 35496") ==
                std::string::npos,
            false);
}

// conns4 { 10.77.1.2 . 35496 . 10.77.1.1 . 9999 }
TEST(NetworkLock, OfNftablesIsFoundByTheConnection) {
  EXPECT_EQ(
      nft_element_of(connection(kOurs, kTheirs)),
      kTheirs + std::string("\x8a\xa8\x00\x00", 4) + kOurs + std::string("\x27\x0f\x00\x00", 4));
}

}  // namespace
}  // namespace ppmr
