// A script takes the place of runc.
#include "migration/relay/container_fate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_directory.h"

namespace ppmr {
namespace {

using testing::HasSubstr;

const ContainerRecord kJob{"job", "/srv/job", ""};
const ContainerPort kPort{"job-port", "jobs", "/run/netns/job"};

int error_of(const PresentContainer& other) {
  const Status checked = check_cut(kJob, kPort, {{"idle", "running", "/srv/idle", ""}, other});
  return checked ? 0 : checked.error().errno_value;
}

TEST(CheckCut, RefusesThePortOfAContainerThatIsHere) {
  EXPECT_EQ(error_of({"other", "running", "/srv/other", "other-port"}), 0);
  EXPECT_EQ(error_of({"other", "running", "/srv/job", ""}), EBUSY);
  EXPECT_EQ(error_of({"other", "running", "/srv/copy", "job-port"}), EBUSY);
  EXPECT_EQ(error_of({"job", "running", "/srv/other", "other-port"}), EBUSY);
  for (const char* status : {"created", "paused"}) {
    EXPECT_EQ(error_of({"other", status, "/srv/job", "job-port"}), EBUSY) << status;
  }
  EXPECT_EQ(error_of({"other", "stopped", "/srv/job", "job-port"}), 0);
}

class ExpectContainer : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(bundle_ + "/config.json")
        << R"({"annotations": {"ppmr.port": "no-such-port", "ppmr.bridge": "no-bridge"},
               "linux": {"namespaces": [{"type": "network", "path": "/run/netns/none"}]}})";
  }

  // Makes a runc that knows one container, which uses the bundle.
  void make_runc() {
    const std::string runc = bundle_ + "/runc";
    std::ofstream(runc) << "#!/bin/sh\ncase $1 in\nlist) echo victim;;\nstate) echo '{\"id\": "
                        << "\"victim\", \"pid\": 1, \"status\": \"running\", \"bundle\": \""
                        << bundle_ << "\", \"rootfs\": \"/\", \"created\": \"now\"}';;\nesac\n";
    std::filesystem::permissions(runc, std::filesystem::perms::owner_all);
    setenv("PATH", (bundle_ + ":/usr/bin:/bin").c_str(), 1);
  }

  // No interface has the port's name. So a cut would fail with ENODEV.
  std::string refusal(const nlohmann::json& policy) const {
    OwnershipRecord record;
    record.restart_policy = policy;
    TreeRecord tree;
    tree.container = {"job", bundle_, ""};
    const Status expected = expect_container_at_target(record, tree);
    return expected ? "" : expected.error().message;
  }

  const TestDirectory directory_;
  const std::string bundle_ = directory_.path();
};

TEST_F(ExpectContainer, CutsNoPortOfABundleThatThePolicyDoesNotAccept) {
  const std::string error = refusal({{"bundles", {"/srv/"}}});
  EXPECT_THAT(error, HasSubstr("the target does not accept the tree"));
  EXPECT_THAT(error, HasSubstr(bundle_));
}

TEST_F(ExpectContainer, CutsNoPortOfARunningContainer) {
  make_runc();
  for (const nlohmann::json& policy :
       {nlohmann::json{{"everything", true}}, nlohmann::json{{"bundles", {bundle_}}}}) {
    EXPECT_THAT(refusal(policy), HasSubstr("the container victim")) << policy;
  }
}

}  // namespace
}  // namespace ppmr
