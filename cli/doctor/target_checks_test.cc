#include "cli/doctor/target_checks.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

// A socket that is bound to a free port of 127.0.0.1. As long as it exists, no other process can
// use the port.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  void listen() { EXPECT_EQ(::listen(socket_.get(), 8), 0); }
  const std::string& address() const { return address_; }

 private:
  UniqueFd socket_;
  std::string address_;
};

Diagnosis last_of(const TargetQuestion& question) {
  const auto found = check_target(question, {});
  EXPECT_FALSE(found.empty());
  return found.empty() ? Diagnosis{} : found.back();
}

TEST(TargetChecks, RemedyForAClosedPortIsADaemonAndNotTheFirewall) {
  const Port port;
  const auto found = last_of({.address = port.address(), .credentials = {}});
  EXPECT_EQ(found.check, "target-port");
  EXPECT_EQ(found.level, Level::kProblem);
  EXPECT_NE(found.message.find("nothing listens"), std::string::npos) << found.message;
  EXPECT_EQ(found.remedy.find("firewall"), std::string::npos);
}

TEST(TargetChecks, SilentPortIsReportedWithinThePatience) {
  Port port;
  port.listen();
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const auto found = last_of(
      {.address = port.address(), .credentials = {}, .patience = std::chrono::milliseconds(100)});
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(found.check, "target-handshake");
  EXPECT_NE(found.message.find("sends nothing"), std::string::npos) << found.message;
}

TEST(TargetChecks, NameWithoutAddressIsAProblemOfTheName) {
  EXPECT_EQ(last_of({.address = "no-such-host.invalid:7440", .credentials = {}}).check,
            "target-name");
  EXPECT_EQ(last_of({.address = "no-port", .credentials = {}}).check, "target-name");
}

NodeFacts node() {
  NodeFacts facts;
  facts.architecture = "x86_64";
  facts.criu_path = "/opt/criu";
  facts.criu_version = "4.2.1";
  facts.cpu_features = {"avx", "avx2"};
  return facts;
}

TEST(TargetChecks, ClocksThatDifferAreAWarning) {
  EXPECT_EQ(compare_clocks(100'000'000).level, Level::kOk);
  const Diagnosis ahead = compare_clocks(3'240'000'000);
  EXPECT_EQ(ahead.level, Level::kWarning);
  EXPECT_NE(ahead.message.find("3.2 s ahead of this one"), std::string::npos) << ahead.message;
  const Diagnosis behind = compare_clocks(-90'000'000'000);
  EXPECT_NE(behind.message.find("90.0 s behind this one"), std::string::npos) << behind.message;
}

TEST(TargetChecks, RdmaPortOnOnlyOneNodeIsAWarning) {
  const auto level = [](const std::vector<std::string>& here,
                        const std::vector<std::string>& target) {
    NodeFacts one = node();
    NodeFacts other = node();
    one.rdma_ports = here;
    other.rdma_ports = target;
    for (const Diagnosis& found : compare_nodes(one, other)) {
      if (found.check == "target-rdma") return found.level;
    }
    return Level::kProblem;
  };
  EXPECT_EQ(level({}, {}), Level::kOk);
  EXPECT_EQ(level({"mlx5_0:1"}, {"rxe0:1"}), Level::kOk);
  EXPECT_EQ(level({"mlx5_0:1"}, {}), Level::kWarning);
  EXPECT_EQ(level({}, {"rxe0:1"}), Level::kWarning);
}

TEST(TargetChecks, EqualNodesAreOk) {
  for (const Diagnosis& one : compare_nodes(node(), node())) {
    EXPECT_EQ(one.level, Level::kOk) << one.message;
  }
}

TEST(TargetChecks, DifferencesAreReported) {
  NodeFacts other = node();
  other.criu_version = "4.1.1";
  other.cpu_features = {"avx"};
  auto found = compare_nodes(node(), other);
  EXPECT_EQ(found[0].level, Level::kWarning) << found[0].message;
  EXPECT_NE(found[1].message.find("lacks avx2:"), std::string::npos) << found[1].message;
  other.criu_problem = "vDSO";
  other.architecture = "aarch64";
  found = compare_nodes(node(), other);
  EXPECT_EQ(found[0].level, Level::kProblem) << found[0].message;
  EXPECT_EQ(found[1].level, Level::kProblem) << found[1].message;
}

}  // namespace
}  // namespace ppmr
