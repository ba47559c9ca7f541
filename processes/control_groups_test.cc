#include "processes/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

namespace fs = std::filesystem;

// A directory that looks like the mount points of both versions.
class ControlGroups : public testing::Test {
 protected:
  void SetUp() override {
    top_ = testing::TempDir() + "/groups-" + std::to_string(getpid());
    fs::create_directories(top_ + "/v2/a/b");
    fs::create_directories(top_ + "/v1/a/b");
    mounts_ = "30 29 0:1 / " + top_ + "/v2 rw - cgroup2 none rw\n" + "31 29 0:2 / " + top_ +
              "/v1 rw shared:4 - cgroup none rw,freezer,cpuset\n" +
              "32 29 0:3 / /proc rw - proc none rw\n";
  }
  void TearDown() override { fs::remove_all(top_); }
  void put(const std::string& path, const std::string& text) {
    std::ofstream(top_ + path) << text << "\n";
  }
  std::vector<GroupDirectory> directories(const std::string& groups) {
    return find_group_directories(groups, mounts_);
  }

  std::string top_;
  std::string mounts_;
};

TEST_F(ControlGroups, FindsTheDirectoriesOfBothVersions) {
  const auto found = directories("7:freezer,cpuset:/a\n5:name=systemd:/x\n0::/a/b\n");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].path, top_ + "/v1/a");
  EXPECT_TRUE(found[0].has("cpuset"));
  EXPECT_EQ(found[1].path, top_ + "/v2/a/b");
  EXPECT_TRUE(found[1].is_unified);
}

TEST_F(ControlGroups, AGroupThatTheMountDoesNotShowIsLeftOut) {
  mounts_ = "30 29 0:1 /a " + top_ + "/v2 rw - cgroup2 none rw\n";
  EXPECT_TRUE(directories("0::/ab\n").empty());
  EXPECT_TRUE(directories("0::/../x\n").empty());
  ASSERT_EQ(directories("0::/a/b\n").size(), 1u);
  EXPECT_EQ(directories("0::/a/b\n")[0].path, top_ + "/v2/b");
}

TEST_F(ControlGroups, TheFrozenGroupMayBeAboveTheProcess) {
  put("/v2/a/b/cgroup.freeze", "0");
  put("/v2/a/cgroup.freeze", "0");
  EXPECT_EQ(find_freezer(directories("0::/a/b\n")), std::nullopt);
  put("/v2/a/cgroup.freeze", "1");
  const auto freezer = find_freezer(directories("0::/a/b\n"));
  ASSERT_TRUE(freezer);
  EXPECT_EQ(thaw_command(*freezer), "echo 0 > " + top_ + "/v2/a/cgroup.freeze");
}

TEST_F(ControlGroups, AFreezerOfVersionOneIsFound) {
  put("/v1/a/b/freezer.self_freezing", "0");
  EXPECT_EQ(find_freezer(directories("7:freezer,cpuset:/a/b\n")), std::nullopt);
  put("/v1/a/freezer.self_freezing", "1");
  const auto freezer = find_freezer(directories("7:freezer,cpuset:/a/b\n"));
  ASSERT_TRUE(freezer);
  EXPECT_EQ(thaw_command(*freezer), "echo THAWED > " + top_ + "/v1/a/freezer.state");
}

TEST_F(ControlGroups, TheCpusOfAGroupAreThoseInEffect) {
  EXPECT_EQ(allowed_cpus(directories("0::/a\n")), "");
  put("/v2/a/cpuset.cpus.effective", "0-3,8");
  EXPECT_EQ(allowed_cpus(directories("0::/a\n")), "0-3,8");
}

}  // namespace
}  // namespace ppmr
