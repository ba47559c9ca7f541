#include "preflight/container_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kConfig = R"({
  "process": {"terminal": false},
  "root": {"path": "rootfs"},
  "mounts": [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/data", "type": "bind", "source": "/srv/data", "options": ["rbind", "rw"]},
    {"destination": "/data/own", "type": "tmpfs", "source": "tmpfs"},
    {"destination": "/etc/hosts", "type": "none", "source": "hosts", "options": ["bind"]}],
  "linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": "/run/netns/a"}]}})";

TEST(ContainerFacts, NeededPathsAreTheRootfsTheMountSourcesAndJoinedNamespaces) {
  const auto bundle = parse_bundle(kConfig, "/srv/job");
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_FALSE(bundle->terminal);
  EXPECT_THAT(bundle->needed_paths(),
              ElementsAre("/srv/job/rootfs", "/srv/data", "/srv/job/hosts", "/run/netns/a"));
}

TEST(ContainerFacts, MapsAPathInTheContainerThroughMountsToAHostPath) {
  const auto bundle = parse_bundle(kConfig, "/srv/job");
  ASSERT_TRUE(bundle);
  EXPECT_EQ(bundle->host_path("/"), "/srv/job/rootfs");
  EXPECT_EQ(bundle->host_path("/bin/sh"), "/srv/job/rootfs/bin/sh");
  EXPECT_EQ(bundle->host_path("/database"), "/srv/job/rootfs/database");
  EXPECT_EQ(bundle->host_path("/data"), "/srv/data");
  EXPECT_EQ(bundle->host_path("/data/a/b"), "/srv/data/a/b");
  EXPECT_EQ(bundle->host_path("/etc/hosts"), "/srv/job/hosts");
  EXPECT_EQ(bundle->host_path("/data/own/x"), std::nullopt);
  EXPECT_EQ(bundle->host_path("/proc/1/status"), std::nullopt);
}

TEST(ContainerFacts, ErrorNamesTheInvalidConfigFile) {
  for (const char* config : {"", "[]", "{", R"({"root": 1})", R"({"process": {}})",
                             R"({"root": {"path": "r"}, "process": {}, "mounts": [{}]})"}) {
    const auto bundle = parse_bundle(config, "/srv/job");
    ASSERT_FALSE(bundle) << config;
    EXPECT_THAT(bundle.error().message, HasSubstr("/srv/job/config.json"));
  }
}

class ContainerAnswers : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "container_facts_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    std::ofstream(directory_ + "/config.json") << kConfig;
    mkdir((directory_ + "/rootfs").c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Writes kConfig with `text` in place of the beginning of its part "linux".
  void write_config(const std::string& text) const {
    constexpr std::string_view kBegin = "\"linux\": {";
    std::string config = kConfig;
    config.replace(config.find(kBegin), kBegin.size(), text);
    std::ofstream(directory_ + "/config.json") << config;
  }

  std::string directory_;
};

TEST_F(ContainerAnswers, CompareTheBundleAndListMissingPaths) {
  const auto bundle = read_bundle(directory_);
  ASSERT_TRUE(bundle) << bundle.error().message;
  ContainerQuestion question{"no-such-job",
                             directory_,
                             bundle->config_digest,
                             {directory_ + "/rootfs", directory_ + "/missing"}};
  auto answer = answer_question(question);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->bundle, BundleVerdict::kSame);
  EXPECT_FALSE(answer->name_taken);
  EXPECT_THAT(answer->paths_missing, ElementsAre(directory_ + "/missing"));
  write_config("\"linux\": {\"cgroupsPath\": \"/slurm/job_1\",");
  EXPECT_EQ(answer_question(question)->bundle, BundleVerdict::kSame);
  write_config("\"linux\": {\"seccomp\": {},");
  EXPECT_EQ(answer_question(question)->bundle, BundleVerdict::kOther);
  question.bundle = directory_ + "/rootfs";
  EXPECT_EQ(answer_question(question)->bundle, BundleVerdict::kMissing);
}

TEST_F(ContainerAnswers, RefuseInvalidNamesAndPaths) {
  EXPECT_FALSE(answer_question({"../job", directory_, "", {}}));
  EXPECT_FALSE(answer_question({"job", "relative", "", {}}));
  EXPECT_FALSE(answer_question({"job", directory_, "", {"relative"}}));
}

}  // namespace
}  // namespace ppmr
