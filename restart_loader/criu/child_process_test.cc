#include "restart_loader/criu/child_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

namespace ppmr {
namespace {

void wait_for_end(ChildProcess& child) {
  pollfd fd{child.pidfd(), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 10'000), 1);
  ASSERT_TRUE(child.ended());
}

TEST(ChildProcess, ReportsHowItEnded) {
  auto child = ChildProcess::start({.argv = {"/bin/sh", "-c", "exit 3"}});
  ASSERT_TRUE(child.has_value());
  wait_for_end(*child);
  EXPECT_FALSE(child->succeeded());
  EXPECT_EQ(child->how_it_ended(), "ended with exit code 3");

  auto killed = ChildProcess::start({.argv = {"/bin/sh", "-c", "kill -9 $$"}});
  ASSERT_TRUE(killed.has_value());
  wait_for_end(*killed);
  EXPECT_EQ(killed->how_it_ended(), "was killed by signal 9 (Killed)");
}

TEST(ChildProcess, MissingProgramIsAnError) {
  const auto child = ChildProcess::start({.argv = {"/nonexistent"}});
  ASSERT_FALSE(child.has_value());
  EXPECT_EQ(child.error().errno_value, ENOENT);
}

TEST(ChildProcess, DestructorKillsAndReapsTheProcess) {
  pid_t pid = -1;
  {
    auto child = ChildProcess::start({.argv = {"sleep", "100"}});
    ASSERT_TRUE(child.has_value());
    pid = child->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(ChildProcess, DoesNotInheritTheBlockedSignalsOfItsParent) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  auto child = ChildProcess::start({.argv = {"/bin/sh", "-c", "kill -TERM $$; exit 0"}});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(child.has_value());
  wait_for_end(*child);
  EXPECT_EQ(child->how_it_ended(), "was killed by signal 15 (Terminated)");
}

}  // namespace
}  // namespace ppmr
