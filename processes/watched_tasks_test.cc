#include "processes/watched_tasks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes/test_process.h"

namespace ppmr {
namespace {

// Makes a process write no core, and keeps sanitizers from turning its faults into an exit.
const std::function<void()> kWithoutCore = [] {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  for (const int fault : {SIGSEGV, SIGABRT}) signal(fault, SIG_DFL);
};

void end_by(const TestProcess& process, int signal) {
  kill(process.pid(), signal);
  siginfo_t info{};
  const auto id = static_cast<id_t>(process.pid());
  ASSERT_EQ(waitid(P_PID, id, &info, WEXITED | WNOWAIT), 0);
}

// The directory of the socket. bazel removes it.
const std::string& directory() {
  static const std::string path = testing::TempDir();
  return path;
}

WatchedTasks watch(const std::vector<ProcessIdentity>& tasks) {
  auto watched = WatchedTasks::listen(directory());
  EXPECT_TRUE(watched) << watched.error().message;
  const Status handed = hand_over_tasks(directory(), tasks);
  EXPECT_TRUE(handed) << handed.error().message;
  return std::move(*watched);
}

TEST(WatchedTasks, AreCrashedByFaultsOnly) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT}) {
    EXPECT_TRUE(is_crash(signal));
    EXPECT_TRUE(is_crash(signal | 0x80)) << "with a core";
  }
  for (const int signal : {SIGTERM, SIGKILL, SIGINT, SIGPIPE}) EXPECT_FALSE(is_crash(signal));
  EXPECT_FALSE(is_crash(0));
  EXPECT_FALSE(is_crash(SIGSEGV << 8)) << "an exit code";
}

TEST(WatchedTasks, ReportTheTaskThatHasCrashed) {
  const TestProcess lives(kWithoutCore), crashes(kWithoutCore);
  WatchedTasks watched = watch({*identify(lives.pid()), *identify(crashes.pid())});
  EXPECT_FALSE(*watched.crashed());
  end_by(crashes, SIGSEGV);
  const auto found = *watched.crashed();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pid, crashes.pid());
  EXPECT_EQ(found->signal, SIGSEGV);
}

TEST(WatchedTasks, ReportACrashedTaskThatItsParentHasReaped) {
  TestProcess crashes(kWithoutCore);
  const pid_t pid = crashes.pid();
  WatchedTasks watched = watch({*identify(pid)});
  end_by(crashes, SIGABRT);
  crashes.end();  // reaps the process
  const auto found = *watched.crashed();
  if (!found) GTEST_SKIP() << "NOT TESTED: how a reaped process has ended (Linux 6.15)";
  EXPECT_EQ(found->pid, pid);
  EXPECT_EQ(found->signal, SIGABRT);
}

TEST(WatchedTasks, AreFoundAlthoughTheWatcherLooksOnlyAfterTheCrash) {
  TestProcess crashes(kWithoutCore);
  auto watched = WatchedTasks::listen(directory());
  ASSERT_TRUE(watched);
  std::vector<ProcessIdentity> tasks(600, identify_self());
  tasks.push_back(*identify(crashes.pid()));
  ASSERT_TRUE(hand_over_tasks(directory(), tasks));
  end_by(crashes, SIGSEGV);
  const auto found = *watched->crashed();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pid, crashes.pid());
}

TEST(WatchedTasks, CannotBeHandedOverIfNoProcessListens) {
  const std::string none = directory() + "/none";
  EXPECT_EQ(hand_over_tasks(none, {identify_self()}).error().errno_value, ENOENT);
  { ASSERT_TRUE(WatchedTasks::listen(directory())); }
  EXPECT_EQ(hand_over_tasks(directory(), {identify_self()}).error().errno_value, ECONNREFUSED);
}

TEST(WatchedTasks, DoNotReportTasksThatOthersHaveEnded) {
  TestProcess ended(kWithoutCore);
  WatchedTasks watched = watch({*identify(ended.pid())});
  end_by(ended, SIGTERM);
  EXPECT_FALSE(*watched.crashed());
  ended.end();
  EXPECT_FALSE(*watched.crashed());
}

}  // namespace
}  // namespace ppmr
