#include "jobs/node/node_spec.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/descriptor_limit.h"
#include "jobs/node/job_node.h"

namespace ppmr {
namespace {

using nlohmann::json;

NodeSpec valid_spec() {
  return {.job = "0123abcd",
          .index = 3,
          .name = "n3.cluster",
          .address = "10.1.2.3",
          .home = "n1",
          .token = "00ff",
          .user = {.uid = 1000, .gid = 100, .groups = {100, 200}},
          .allocation = "42",
          .hosts = "10.1.2.1 n1\n10.1.2.3 n3.cluster\n",
          .rdma = true};
}

TEST(NodeSpec, SurvivesConversionToJsonAndBack) {
  const json sent = to_json(valid_spec());
  const auto received = parse_node_spec(json::parse(sent.dump()));
  ASSERT_TRUE(received) << received.error().message;
  EXPECT_EQ(to_json(*received), sent);
  EXPECT_EQ(received->container(), "ppmr-0123abcd-3");
  EXPECT_EQ(received->node_count(), 2u);
}

TEST(NodeSpec, NamesThatCouldBecomeOtherPathsAreRefused) {
  const std::vector<std::pair<std::string, json>> wrong = {{"job", "../../etc"},
                                                           {"job", "0123ABCD"},
                                                           {"job", ""},
                                                           {"name", "a/b"},
                                                           {"name", "-n"},
                                                           {"name", ""},
                                                           {"name", "a b"},
                                                           {"name", "a\nb"},
                                                           {"address", "10.1.2"},
                                                           {"address", "::1"},
                                                           {"home", "a;b"},
                                                           {"home", ".hidden"},
                                                           {"token", ""},
                                                           {"token", "x\n"},
                                                           {"uid", "root"},
                                                           {"index", "0"},
                                                           {"allocation", "42/../43"},
                                                           {"hosts", json::object()},
                                                           {"hosts", "10.0.0.1 a/b\n"},
                                                           {"hosts", "b a\n"},
                                                           {"hosts", "10.0.0.1\n"},
                                                           {"hosts", "10.0.0.1 \n"},
                                                           {"hosts", "\n"},
                                                           {"hosts", "10.0.0.1\na\n"},
                                                           {"hosts", "10.0.0.1 a b\n"},
                                                           {"hosts", "10.0.0.1 a"}};
  for (const auto& [field, value] : wrong) {
    json spec = to_json(valid_spec());
    spec[field] = value;
    EXPECT_FALSE(parse_node_spec(spec)) << field << " " << value;
    spec.erase(field);
    EXPECT_FALSE(parse_node_spec(spec)) << field << " is missing";
  }
}

TEST(NodeSpec, RdmaIsYesOrNoAndNoInRecordsOfEarlierAgents) {
  json spec = to_json(valid_spec());
  spec["rdma"] = "yes";
  EXPECT_FALSE(parse_node_spec(spec));
  spec.erase("rdma");
  const auto parsed = parse_node_spec(spec);
  ASSERT_TRUE(parsed);
  EXPECT_FALSE(parsed->rdma);
}

TEST(NodeSpec, OnlyNamesOfJobNodesAreNamesOfContainers) {
  EXPECT_TRUE(is_job_container("ppmr-0123abcd-0"));
  EXPECT_TRUE(is_job_container("ppmr-0123abcd-123"));
  for (const char* other : {"", "ppmr-", "ppmr-0123abcd", "ppmr-0123abcd-", "ppmr-0123abcd-home",
                            "ppmr-0123ABCD-0", "job", "xppmr-0123abcd-0"}) {
    EXPECT_FALSE(is_job_container(other)) << other;
  }
}

TEST(JobNodeConfig, GivesProcessesNoPrivilegeBeyondTheirUser) {
  const JobNodeOptions options{.directory = "/run/x",
                               .shares = {"/home"},
                               .program = "/usr/bin/ppmr",
                               .network = {.bridge = "jobs"}};
  const json config = json::parse(job_node_config(options, valid_spec(), ""));
  const json& process = config.at("process");
  EXPECT_EQ(process.at("user").at("uid"), 1000);
  EXPECT_EQ(process.at("user").at("additionalGids"), json::array({100, 200}));
  EXPECT_EQ(process.at("noNewPrivileges"), true);
  EXPECT_EQ(process.at("capabilities"), json::object());
  // The mount of the root is itself read-only and nosuid, and runc must not change that.
  EXPECT_EQ(config.at("root").at("readonly"), false);
  EXPECT_EQ(config.at("annotations").at("ppmr.port"), "pj0a010203");
  for (const json& mount : config.at("mounts")) {
    if (mount.at("type") != "bind") continue;
    const bool writable = mount.at("options").at(1) == "rw";
    EXPECT_EQ(writable, mount.at("destination") == "/home") << mount;
  }
}

TEST(JobNodeConfig, GivesProgramsTheDescriptorLimitWithWhichTheJobAgentWasStarted) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  raise_descriptor_limit();
  const json config = json::parse(job_node_config({}, valid_spec(), ""));
  const json& limit = config.at("process").at("rlimits").at(0);
  EXPECT_EQ(limit.at("type"), "RLIMIT_NOFILE");
  EXPECT_EQ(limit.at("soft"), before.rlim_cur);
  EXPECT_EQ(limit.at("hard"), before.rlim_max);
  (void)setrlimit(RLIMIT_NOFILE, &before);
}

TEST(JobNetwork, MacAddressIsLocallyAdministeredAndFollowsFromTheIpAddress) {
  EXPECT_EQ(mac_of("10.1.2.255"), "02:00:0a:01:02:ff");
}

}  // namespace
}  // namespace ppmr
