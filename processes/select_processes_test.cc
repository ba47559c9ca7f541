#include "processes/select_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "processes/test_process.h"

namespace ppmr {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SelectProcesses : public testing::Test {
 protected:
  SelectProcesses() : word_(fmt::format("evacuee-{}", getpid())) {}

  // A shell that runs `script`; its command line contains `word_` and `suffix`. Returns its pid
  // after exec().
  pid_t start(const std::string& suffix, const std::string& script) {
    const std::string name = word_ + suffix;
    int executed[2];  // a pipe, whose write end exec() closes
    EXPECT_EQ(pipe2(executed, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setpgid(0, 0);
      execl("/bin/sh", "sh", "-c", script.c_str(), name.c_str(), nullptr);
      _exit(127);
    }
    started_.push_back(pid);
    close(executed[1]);
    char none = 0;
    EXPECT_EQ(read(executed[0], &none, 1), 0);
    close(executed[0]);
    return pid;
  }
  void TearDown() override {
    for (pid_t pid : started_) kill(-pid, SIGKILL), waitpid(pid, nullptr, 0);
  }
  ProcessSelection select(const ProcessSelector& selector) {
    const auto selection = select_processes(selector);
    EXPECT_TRUE(selection.has_value()) << selection.error().message;
    return selection.value_or(ProcessSelection{});
  }

  const std::string word_;
  std::vector<pid_t> started_;
};

TEST_F(SelectProcesses, TopmostMatchingProcessIsTheRootOfTheTree) {
  const pid_t pid = start("-a", "sh -c 'sleep 60; :' " + word_ + "-child & wait");
  const ProcessSelection selection = select({.pattern = word_ + "-"});
  ASSERT_THAT(selection.trees, SizeIs(1));
  EXPECT_EQ(selection.trees[0].root, pid);
  EXPECT_THAT(selection.trees[0].command_line, HasSubstr(word_ + "-a"));
  EXPECT_THAT(selection.excluded, IsEmpty());
}

TEST_F(SelectProcesses, AllCriteriaMustMatch) {
  const pid_t pid = start("-b", "sleep 60; :");
  const std::string us = std::to_string(getuid());
  ASSERT_THAT(select({.user = us, .pattern = word_ + "-b"}).trees, SizeIs(1));
  EXPECT_EQ(select({.user = us, .pattern = word_ + "-b"}).trees[0].root, pid);
  EXPECT_THAT(select({.user = "54321", .pattern = word_ + "-b"}).trees, IsEmpty());
}

TEST_F(SelectProcesses, AcceptsAControlGroupAsADirectoryOrAsAPathInTheHierarchy) {
  const pid_t pid = start("-c", "sleep 60; :");
  const auto lines = read_process_file(pid, "cgroup");
  ASSERT_TRUE(lines.has_value());
  // Finds a control group of this process that is not a root group: "4:memory:/a/b".
  std::string group, controllers;
  std::istringstream all(*lines);
  for (std::string line; std::getline(all, line);) {
    const size_t path = line.find(":/");
    if (path + 2 >= line.size()) continue;
    group = line.substr(path + 1);
    controllers = line.substr(line.find(':') + 1, path - line.find(':') - 1);
  }
  if (group.empty())
    GTEST_SKIP() << "NOT TESTED: selection by control group (this process is in root groups only)";
  std::vector<std::string> names = {group, group.substr(1), group + "/"};
  const std::string directory = "/sys/fs/cgroup/" + controllers + group;
  if (std::filesystem::exists(directory)) names.push_back(directory);
  for (const std::string& name : names) {
    const ProcessSelection selection = select({.cgroup = name, .pattern = word_ + "-c"});
    ASSERT_THAT(selection.trees, SizeIs(1)) << name;
    EXPECT_EQ(selection.trees[0].root, pid);
  }
  EXPECT_THAT(select({.cgroup = group, .pattern = word_ + "-not"}).trees, IsEmpty());
}

TEST_F(SelectProcesses, ExcludesTheCallerAndItsAncestors) {
  const auto line = read_command_line(getpid());
  ASSERT_TRUE(line.has_value());
  const ProcessSelection selection = select({.pattern = "."});
  EXPECT_THAT(selection.excluded,
              testing::Contains(testing::Field(&ExcludedProcess::pid, getpid())));
  EXPECT_THAT(selection.excluded,
              testing::Contains(testing::Field(&ExcludedProcess::pid, getppid())));
  for (const SelectedTree& tree : selection.trees) {
    EXPECT_NE(tree.root, 1);
    EXPECT_NE(tree.root, getpid());
    EXPECT_NE(tree.root, getppid());
  }
}

TEST_F(SelectProcesses, ExcludesPpmr) {
  const TestProcess daemon;  // runs the same program as the selecting process
  const ProcessSelection selection = select({.pattern = "."});
  EXPECT_THAT(selection.excluded, testing::Contains(testing::AllOf(
                                      testing::Field(&ExcludedProcess::pid, daemon.pid()),
                                      testing::Field(&ExcludedProcess::reason, "is ppmr itself"))));
}

TEST_F(SelectProcesses, RefusesInvalidSelectors) {
  EXPECT_EQ(select_processes({}).error().errno_value, EINVAL);
  EXPECT_THAT(select_processes({.pattern = "("}).error().message,
              HasSubstr("is not an extended regular expression"));
  EXPECT_THAT(select_processes({.user = "nobody-of-this-name"}).error().message,
              HasSubstr("no user"));
  EXPECT_THAT(select_processes({.cgroup = "/sys/fs/cgroup/not-there"}).error().message,
              HasSubstr("no control group"));
  EXPECT_THAT(select_processes({.cgroup = "not-there"}).error().message,
              HasSubstr("no control group /not-there"));
  EXPECT_EQ(select_processes({.cgroup = "/"}).error().errno_value, EINVAL);
}

TEST(IsInCgroup, IncludesDescendantGroups) {
  EXPECT_TRUE(is_in_cgroup("0::/batch/job7\n", "/batch"));
  EXPECT_TRUE(is_in_cgroup("0::/batch\n", "/batch"));
  EXPECT_FALSE(is_in_cgroup("0::/batch2/job7\n", "/batch"));
  EXPECT_FALSE(is_in_cgroup("0::/other/batch\n", "/batch"));
  EXPECT_TRUE(is_in_cgroup("9:name=systemd:/x\n4:cpu,cpuacct:/batch/a\n0::/\n", "/batch/a"));
  EXPECT_FALSE(is_in_cgroup("", "/batch"));
}

}  // namespace
}  // namespace ppmr
