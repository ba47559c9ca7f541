#include "restart_loader/containers/container_port.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace ppmr {
namespace {

const std::string kNamespaces =
    R"("linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": "/run/netns/job"}]})";

TEST(ContainerPort, IsNamedByAnnotationsOfTheBundle) {
  const auto port = parse_container_port(
      R"({"annotations": {"ppmr.port": "job-port", "ppmr.bridge": "jobs"}, )" + kNamespaces + "}");
  ASSERT_TRUE(port) << port.error().message;
  EXPECT_TRUE(port->exists());
  EXPECT_EQ(port->interface, "job-port");
  EXPECT_EQ(port->bridge, "jobs");
  EXPECT_EQ(port->network_namespace, "/run/netns/job");
}

TEST(ContainerPort, DoesNotExistWithoutAnnotations) {
  for (const std::string config : {"{}", R"({"annotations": {"other": "x"}})"}) {
    const auto port = parse_container_port(config);
    ASSERT_TRUE(port) << port.error().message;
    EXPECT_FALSE(port->exists());
  }
}

TEST(ContainerPort, RefusesInvalidInterfaceNames) {
  for (const std::string name : {"", "a/b", "..", "name-of-16-bytes", "a b"}) {
    const auto port = parse_container_port(R"({"annotations": {"ppmr.port": ")" + name +
                                           R"(", "ppmr.bridge": "jobs"}, )" + kNamespaces + "}");
    ASSERT_FALSE(port) << name;
    EXPECT_EQ(port.error().errno_value, EPROTO);
  }
}

TEST(ContainerPort, NeedsANetworkNamespaceWithAPath) {
  const auto port = parse_container_port(
      R"({"annotations": {"ppmr.port": "p", "ppmr.bridge": "b"},
          "linux": {"namespaces": [{"type": "network"}]}})");
  ASSERT_FALSE(port);
  EXPECT_NE(port.error().message.find("network namespace with a path"), std::string::npos);
}

// read(2) returns an error for a directory, as it does for a file on a disk that fails.
TEST(ContainerPort, ReportsAConfigurationThatCannotBeRead) {
  const std::string bundle = testing::TempDir() + "/bundle";
  std::filesystem::create_directories(bundle + "/config.json");
  const auto port = read_container_port(bundle);
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().errno_value, EISDIR);
}

TEST(ContainerPort, ReportsAMissingInterface) {
  const ContainerPort port{"no-such-port", "no-such-bridge", "/run/netns/none"};
  for (const Status& changed : {port.cut(), port.attach()}) {
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().errno_value, ENODEV);
    EXPECT_NE(changed.error().message.find("no-such-port"), std::string::npos);
  }
}

}  // namespace
}  // namespace ppmr
