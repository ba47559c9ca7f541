#include "processes/restorer_wait.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include <cstring>

#include "processes/process_identity.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

int word = 0;

// Makes the exit of a process take longer.
void allocate_memory() {
  constexpr size_t kBytes = size_t{32} << 20;
  memset(new char[kBytes], 1, kBytes);
}

// A process that waits first in read(2), and then in futex(2) as CRIU's restorer does.
class RestorerWaitTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    pid_ = fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char byte = 0;
      (void)!read(ends[0], &byte, 1);
      for (;;) syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr);
    }
    tree_.tasks = {identify(pid_).value()};
    in_read_ = await_in_restorer(pid_);
    ASSERT_EQ(write(ends[1], "", 1), 1);
    close(ends[0]), close(ends[1]);
    tree_.waiting_at = {await_in_restorer(pid_)};
  }
  void TearDown() override { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  pid_t pid_ = -1;
  uint64_t in_read_ = 0;
  RestoredTree tree_;
};

TEST_F(RestorerWaitTest, ProcessInFutexCountsAsWaitingForCriuAndOneInReadDoesNot) {
  EXPECT_EQ(in_read_, 0u);
  EXPECT_NE(tree_.waiting_at[0], 0u);
  EXPECT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting);
  end();
  EXPECT_EQ(look_at_restored(tree_), RestoredTasks::kGone);
}

TEST_F(RestorerWaitTest, KilledProcessIsReportedAsGoneBeforeItsExitIsComplete) {
  for (int round = 0; round < 100; ++round) {
    TestProcess process([] { allocate_memory(); });
    RestoredTree tree;
    tree.tasks = {identify(process.pid()).value()};
    tree.waiting_at = {0};
    kill(process.pid(), SIGKILL);
    ASSERT_EQ(look_at_restored(tree), RestoredTasks::kGone) << round;
  }
}

TEST_F(RestorerWaitTest, ProcessCountsAsWaitingForCriuWhileSignalsArrive) {
  for (int round = 0; round < 500; ++round) {
    kill(pid_, SIGSTOP);
    ASSERT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting) << round;
    kill(pid_, SIGCONT);
    ASSERT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting) << round;
  }
}

#if defined(__x86_64__)
// The process is in the state in which a second signal finds it just after a first signal has
// interrupted its system call.
TEST_F(RestorerWaitTest, ProcessCountsAsWaitingForCriuWhileItsSystemCallIsRestarted) {
  constexpr int kSystemCallBytes = 2;
  ASSERT_EQ(ptrace(PTRACE_ATTACH, pid_, nullptr, nullptr), 0);
  waitpid(pid_, nullptr, 0);
  user_regs_struct registers{};
  ASSERT_EQ(ptrace(PTRACE_GETREGS, pid_, nullptr, &registers), 0);
  registers.rip -= kSystemCallBytes;
  ASSERT_EQ(ptrace(PTRACE_SETREGS, pid_, nullptr, &registers), 0);
  EXPECT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting);
}
#endif

TEST(RestorerWait, ProcessThatRunsItsOwnCodeDoesNotCountAsWaitingForCriu) {
  TestProcess process;
  RestoredTree tree;
  tree.tasks = {identify(process.pid()).value()};
  tree.waiting_at = {await_in_restorer(process.pid())};
  EXPECT_EQ(tree.waiting_at[0], 0u) << "it waits, but not for CRIU";
  EXPECT_EQ(look_at_restored(tree), RestoredTasks::kRunning);
}

}  // namespace
}  // namespace ppmr
