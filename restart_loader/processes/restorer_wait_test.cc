#include "restart_loader/processes/restorer_wait.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "restart_loader/processes/process_identity.h"
#include "restart_loader/processes/test_process.h"

namespace ppmr {
namespace {

int word = 0;

// So that its end takes a moment.
void take_memory() {
  constexpr size_t kBytes = size_t{32} << 20;
  memset(new char[kBytes], 1, kBytes);
}

void wait_for_word() { syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr); }

// A process that is somewhere else first. Not a test process, which ends elsewhere, too.
class RestorerWaitTest : public testing::Test {
 protected:
  void SetUp() override {
    pid_ = fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (;;) wait_for_word();
    }
    tree_.tasks = {identify(pid_).value()};
    tree_.waiting_at = {await_in_restorer(pid_)};
    // Long past its first system call, which must not have been taken for the one it waits in.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  void TearDown() override { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  pid_t pid_ = -1;
  RestoredTree tree_;
};

TEST_F(RestorerWaitTest, IsNotAnotherSystemCallBeforeIt) {
  EXPECT_NE(tree_.waiting_at[0], 0u);
  EXPECT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting);
  end();
  EXPECT_EQ(look_at_restored(tree_), RestoredTasks::kGone);
}

TEST_F(RestorerWaitTest, IsOverForAProcessThatWasKilled) {
  for (int round = 0; round < 100; ++round) {
    TestProcess process([] { take_memory(); });
    RestoredTree tree;
    tree.tasks = {identify(process.pid()).value()};
    tree.waiting_at = {0};
    kill(process.pid(), SIGKILL);
    ASSERT_EQ(look_at_restored(tree), RestoredTasks::kGone) << round;
  }
}

TEST_F(RestorerWaitTest, IsStillOneWhileASignalArrives) {
  for (int round = 0; round < 500; ++round) {
    kill(pid_, SIGSTOP);
    ASSERT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting) << round;
    kill(pid_, SIGCONT);
    ASSERT_EQ(look_at_restored(tree_), RestoredTasks::kWaiting) << round;
  }
}

#if defined(__x86_64__)
// Where a signal finds it that arrives when another has just interrupted the system call.
TEST_F(RestorerWaitTest, IsStillOneThatIsAboutToRepeatItsSystemCall) {
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

TEST(RestorerWait, IsNotThatOfAProcessThatRunsItsOwnCode) {
  TestProcess process;
  RestoredTree tree;
  tree.tasks = {identify(process.pid()).value()};
  tree.waiting_at = {await_in_restorer(process.pid())};
  EXPECT_EQ(tree.waiting_at[0], 0u) << "it sleeps, but not for CRIU";
  EXPECT_EQ(look_at_restored(tree), RestoredTasks::kRunning);
}

}  // namespace
}  // namespace ppmr
