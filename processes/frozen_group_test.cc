// Real processes: a task with a handler for SIGTERM, held by a tracer as CRIU would hold it.
#include "processes/frozen_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include "processes/frozen_tasks.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kId = "0123456789abcdef0123456789abcdef";
int report_fd = -1;

// The hierarchy of version 2, mounted for this process only: a node may have none.
class Hierarchy {
 public:
  Hierarchy() {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    mounted_ = unshare(CLONE_NEWNS) == 0 &&
               mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("cgroup2", path_.c_str(), "cgroup2", 0, nullptr) == 0;
  }
  ~Hierarchy() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "/groups-XXXXXX";
  bool mounted_ = false;
};

class FrozenGroupTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { places_ = std::make_unique<Hierarchy>(); }
  static void TearDownTestSuite() { places_.reset(); }

  FrozenGroupTest() {
    int ends[2], held[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(pipe(held), 0);
    reports_ = ends[0];
    task_ = fork();
    if (task_ == 0) {
      report_fd = ends[1];
      signal(SIGTERM, [](int) { (void)!write(report_fd, "T", 1); });
      (void)!write(report_fd, "R", 1);
      for (;;) pause();
    }
    EXPECT_EQ(next_report(), 'R');
    tracer_ = fork();
    if (tracer_ == 0) {
      ptrace(PTRACE_SEIZE, task_, 0, 0);
      ptrace(PTRACE_INTERRUPT, task_, 0, 0);
      waitpid(task_, nullptr, __WALL);
      (void)!write(held[1], "H", 1);
      for (;;) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(held[0], &byte, 1), 1);
    tasks_ = {*identify(task_)};
  }
  ~FrozenGroupTest() override {
    end(tracer_);
    end(task_);
    remove_frozen_groups(kId);
  }

  // A pid of 0 or less would signal other processes.
  static void end(pid_t& pid) {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, __WALL);
    pid = 0;
  }
  // Returns 0 if no report arrives within 10 s.
  char next_report() const {
    pollfd fd{reports_, POLLIN, 0};
    char byte = 0;
    return poll(&fd, 1, 10'000) == 1 && read(reports_, &byte, 1) == 1 ? byte : '\0';
  }
  bool has_report() const {
    pollfd fd{reports_, POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }
  void stop_pending() const { FrozenTasks::open(tasks_)->stop(); }
  // Sends the signals with which systemd stops a unit, then kills the tracer as if CRIU had died.
  void stop_unit_and_kill_tracer() {
    kill(task_, SIGTERM);
    kill(task_, SIGCONT);
    end(tracer_);
  }
  std::string group() const {
    const std::string text = *read_process_file(task_, "cgroup");
    const size_t at = text.find("0::") + 3;
    return places_->path() + text.substr(at, text.find('\n', at) - at);
  }
  bool await_frozen() const {
    const auto deadline = Clock::now() + seconds(10);
    while (Clock::now() < deadline) {
      std::ifstream file(group() + "/cgroup.events");
      const std::string text(std::istreambuf_iterator<char>(file), {});
      if (text.find("frozen 1") != std::string::npos) return true;
      std::this_thread::yield();
    }
    return false;
  }

  inline static std::unique_ptr<Hierarchy> places_;
  pid_t task_ = 0, tracer_ = 0;
  int reports_ = -1;
  std::vector<ProcessIdentity> tasks_;
};

#define SKIP_WITHOUT_GROUPS(frozen)                                                            \
  if (!(frozen))                                                                               \
  GTEST_SKIP() << "NOT TESTED: frozen groups: it needs writable control groups of version 2: " \
               << (frozen).error().message

// Shows why the group is needed: a pending SIGSTOP alone does not hold the task.
TEST_F(FrozenGroupTest, PendingSigstopDoesNotOutliveSigcont) {
  stop_pending();
  stop_unit_and_kill_tracer();
  EXPECT_EQ(next_report(), 'T');
}

TEST_F(FrozenGroupTest, TaskInTheGroupDoesNotRunAfterSigtermSigcontAndTheEndOfItsTracer) {
  stop_pending();
  const Status frozen = freeze_in_groups(tasks_, kId);
  SKIP_WITHOUT_GROUPS(frozen);
  stop_unit_and_kill_tracer();
  ASSERT_TRUE(await_frozen());
  EXPECT_FALSE(has_report()) << "the handler ran";
  ASSERT_TRUE(release_from_groups(tasks_, kId));
  EXPECT_EQ(next_report(), 'T') << "the signal was pending";
}

TEST_F(FrozenGroupTest, TaskReturnsToItsGroupAndTheFrozenOneIsRemoved) {
  const std::string own = group();
  const Status frozen = freeze_in_groups(tasks_, kId);
  SKIP_WITHOUT_GROUPS(frozen);
  const std::string inside = group();
  EXPECT_NE(inside, own);
  ASSERT_TRUE(freeze_in_groups(tasks_, kId)) << "a second call changes nothing";
  EXPECT_EQ(group(), inside);
  ASSERT_TRUE(release_from_groups(tasks_, kId));
  EXPECT_EQ(group(), own);
  EXPECT_NE(access(inside.c_str(), F_OK), 0);
  ASSERT_TRUE(release_from_groups(tasks_, kId));
  EXPECT_EQ(group(), own);
}

TEST_F(FrozenGroupTest, SigkillEndsATaskInTheGroup) {
  const Status frozen = freeze_in_groups(tasks_, kId);
  SKIP_WITHOUT_GROUPS(frozen);
  const std::string inside = group();
  auto tasks = FrozenTasks::open(tasks_);
  tasks->kill();
  tasks->await_end();
  end(tracer_);  // a live tracer would have to reap the task first
  end(task_);
  remove_frozen_groups(kId);
  EXPECT_NE(access(inside.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace ppmr
