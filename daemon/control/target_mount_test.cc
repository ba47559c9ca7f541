#include "daemon/control/target_mount.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

struct Given {
  std::string text;
  std::string address;
  std::string mountpoint;
};

TEST(TargetHost, IsANameOrAnAddressWithOrWithoutAPort) {
  for (const Given& given : {
           Given{"node2", "node2:7440", "/run/ppmr/to/node2"},
           Given{"node2:7440", "node2:7440", "/run/ppmr/to/node2"},
           Given{"node2.example.org:9", "node2.example.org:9", "/run/ppmr/to/node2.example.org:9"},
           Given{"10.0.0.2", "10.0.0.2:7440", "/run/ppmr/to/10.0.0.2"},
           Given{"fe80::1%eth0", "[fe80::1%eth0]:7440", "/run/ppmr/to/fe80::1%eth0"},
           Given{"::1", "[::1]:7440", "/run/ppmr/to/::1"},
           Given{"[::1]", "[::1]:7440", "/run/ppmr/to/::1"},
           Given{"[::1]:99", "[::1]:99", "/run/ppmr/to/::1,99"},
       }) {
    const auto host = parse_target_host(given.text);
    ASSERT_TRUE(host) << given.text << ": " << host.error().message;
    EXPECT_EQ(host->address, given.address);
    EXPECT_EQ(host->mountpoint, given.mountpoint);
  }
}

TEST(TargetHost, CannotLeaveTheDirectoryOfTheMounts) {
  for (const std::string text :
       {"", ".", "..", ".hidden", "-x", "a/b", "../in", "[..]", "[a/b]:1", "a b", "a\nb",
        "a:", "a:0", "a:65536", "a:http", "[::1", "[::1]x", "[]", ":7440"}) {
    const auto host = parse_target_host(text);
    ASSERT_FALSE(host) << text;
    EXPECT_EQ(host.error().errno_value, EINVAL) << text;
  }
  EXPECT_FALSE(parse_target_host(std::string(254, 'a')));
}

TEST(StartError, IsTheOutputOfTheDaemonWithoutItsNames) {
  EXPECT_EQ(start_error("ppmr source: connect to h:1: refused\nexit status 4: see X", false,
                        ExitCode::kPeerFailed),
            "connect to h:1: refused");
  EXPECT_EQ(start_error("", false, ExitCode::kFailure),
            "the daemon of the source mount did not start");
}

TEST(StartError, NamesTheFileWithTheOptions) {
  EXPECT_EQ(start_error("ppmr source: open a.crt: No such file", true, ExitCode::kUsage),
            "open a.crt: No such file\n"
            "correct /etc/ppmr/to.conf: options of ppmr source, without target and mountpoint");
  EXPECT_EQ(start_error("ppmr source: refused", true, ExitCode::kPeerFailed),
            "refused (its options are in /etc/ppmr/to.conf)");
}

}  // namespace
}  // namespace ppmr
