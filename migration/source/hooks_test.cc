#include "migration/source/hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class Hooks : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "hooks_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    settings_.directory = path;
  }
  void TearDown() override { std::filesystem::remove_all(settings_.directory); }

  std::string write(const std::string& name, const std::string& body, mode_t mode = 0755) {
    const std::string path = settings_.directory + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    ::chmod(path.c_str(), mode);
    return path;
  }
  Status run(const std::string& name) const {
    return run_hook(settings_, name, {"abc", {17, 18}, "node2:7440", "it is Monday"});
  }

  HookSettings settings_;
};

TEST_F(Hooks, GetTheFactsInTheirEnvironment) {
  const std::string seen = settings_.directory + "/seen";
  write("after-abort", "echo \"$PPMR_MIGRATION $PPMR_PIDS $PPMR_TARGET $PPMR_REASON\" >" + seen);
  const Status ended = run("after-abort");
  ASSERT_TRUE(ended) << ended.error().message;
  std::string line;
  std::getline(std::ifstream(seen), line);
  EXPECT_EQ(line, "abc 17 18 node2:7440 it is Monday");
}

TEST_F(Hooks, MissingHookOrDirectoryIsSkipped) {
  EXPECT_TRUE(run("after-run"));
  EXPECT_TRUE(check_hooks(settings_));
  EXPECT_TRUE(run_hook({}, "after-run", {}));
  EXPECT_TRUE(check_hooks({}));
}

TEST_F(Hooks, FailureNamesTheFileAndWhatItPrinted) {
  const std::string path = write("before-freeze", "echo the balancer is down; exit 3");
  const Status ended = run("before-freeze");
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message, HasSubstr(path));
  EXPECT_THAT(ended.error().message, HasSubstr("the balancer is down"));
}

TEST_F(Hooks, HookThatDoesNotEndIsKilled) {
  settings_.timeout = 50ms;
  write("before-freeze", "sleep 1000");
  const Status ended = run("before-freeze");
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().errno_value, ETIMEDOUT);
  EXPECT_THAT(ended.error().message, HasSubstr("did not end within 50 ms"));
}

TEST_F(Hooks, AreRefusedIfOthersCanChangeThem) {
  write("after-run", "", 0777);
  EXPECT_EQ(check_hooks(settings_).error().errno_value, EPERM);
  EXPECT_EQ(run("after-run").error().errno_value, EPERM);
  ::chmod((settings_.directory + "/after-run").c_str(), 0755);
  EXPECT_TRUE(check_hooks(settings_));
  ::chmod(settings_.directory.c_str(), 0777);
  EXPECT_EQ(check_hooks(settings_).error().errno_value, EPERM);
}

TEST_F(Hooks, AreRefusedIfTheyBelongToAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the owner of a file";
  const std::string path = write("after-run", "");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(check_hooks(settings_).error().message, HasSubstr("belongs to user 65534"));
}

TEST_F(Hooks, AreRefusedIfTheyCannotRun) {
  write("after-run", "", 0644);
  EXPECT_EQ(check_hooks(settings_).error().errno_value, EACCES);
  EXPECT_EQ(check_hooks({.directory = "/missing"}).error().errno_value, ENOENT);
  EXPECT_EQ(check_hooks({.directory = "/dev/null"}).error().errno_value, ENOTDIR);
  EXPECT_EQ(check_hooks({.directory = "/a=b"}).error().errno_value, EINVAL);
}

}  // namespace
}  // namespace ppmr
