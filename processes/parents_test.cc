// Tests the parents of real processes.
#include "processes/parents.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using namespace std::string_literals;

TEST(Parents, CommandLineIsSplitAtItsZeroBytes) {
  EXPECT_EQ(split_command_line("sh\0-c\0\0two words\0"s),
            (std::vector<std::string>{"sh", "-c", "", "two words"}));
  EXPECT_EQ(split_command_line("no zero at the end"),
            std::vector<std::string>{"no zero at the end"});
  EXPECT_TRUE(split_command_line("").empty());
}

TEST(Parents, SystemCallShowsWhoWaits) {
  EXPECT_TRUE(is_waiting_for_children(std::to_string(SYS_wait4) + " 0xffffffff 0x7ffd 0x0"));
  EXPECT_TRUE(is_waiting_for_children(std::to_string(SYS_waitid) + " 0x1"));
  EXPECT_FALSE(is_waiting_for_children(std::to_string(SYS_read) + " 0x0"));
  EXPECT_FALSE(is_waiting_for_children("running\n"));
  EXPECT_FALSE(is_waiting_for_children("-1 0x7ffd 0x7f00\n"));
  EXPECT_FALSE(is_waiting_for_children(""));
}

TEST(Parents, ParentsOfAProcessAreReadUpwards) {
  const TestProcess process;
  const std::vector<Parent> parents = read_parents(process.pid());
  ASSERT_FALSE(parents.empty());
  EXPECT_EQ(parents[0].pid, getpid());
  EXPECT_EQ(parents[0].program, "parents_test");
  EXPECT_FALSE(parents[0].waits);
  EXPECT_EQ(parents[0].children, 1u);
  EXPECT_FALSE(parents[0].words.empty());
  EXPECT_EQ(parents[0].parent, getppid());
}

TEST(Parents, WaitingParentIsSeen) {
  int ready[2], grandchild = 0;
  ASSERT_EQ(pipe(ready), 0);
  const pid_t waiter = fork();
  if (waiter == 0) {
    const TestProcess child;
    const pid_t pid = child.pid();
    (void)!write(ready[1], &pid, sizeof pid);
    int status = 0;
    waitpid(pid, &status, 0);
    _exit(0);
  }
  ASSERT_EQ(read(ready[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  std::vector<Parent> parents;
  do {
    parents = read_parents(grandchild);
    std::this_thread::yield();
  } while (!parents.empty() && parents[0].pid == waiter && !parents[0].waits);
  ASSERT_GE(parents.size(), 2u);
  EXPECT_TRUE(parents[0].waits);
  EXPECT_EQ(parents[1].pid, getpid());
  kill(grandchild, SIGKILL);
  waitpid(waiter, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(Parents, ProcessThatDoesNotExistHasNone) { EXPECT_TRUE(read_parents(1 << 30).empty()); }

}  // namespace
}  // namespace ppmr
