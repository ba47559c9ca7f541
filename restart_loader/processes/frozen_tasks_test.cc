#include "restart_loader/processes/frozen_tasks.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "restart_loader/processes/proc_files.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A child that does nothing but live.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  ProcessIdentity identity() const { return *identify(pid_); }
  char state() const { return read_process_stat(pid_)->state; }
  void wait_for(char state) const {
    for (int i = 0; i < 2000 && this->state() != state; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(this->state(), state);
  }

 private:
  pid_t pid_;
};

TEST(ProcessIdentity, AnotherStartTimeIsAnotherProcess) {
  const Sleeper sleeper;
  ProcessIdentity process = sleeper.identity();
  EXPECT_TRUE(is_alive(process));
  ++process.start_time;
  EXPECT_FALSE(is_alive(process));
}

TEST(ProcessIdentity, TheTreeOfAProcessHoldsItsDescendants) {
  const Sleeper one;
  const Sleeper other;
  const auto tasks = tasks_of_tree(getpid());
  ASSERT_TRUE(tasks);
  EXPECT_EQ(tasks->front(), identify_self());
  EXPECT_NE(std::find(tasks->begin(), tasks->end(), one.identity()), tasks->end());
  EXPECT_NE(std::find(tasks->begin(), tasks->end(), other.identity()), tasks->end());
  EXPECT_FALSE(tasks_of_tree(0));
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(tasks_of_tree(getpid())->size(), tasks->size());
  waitpid(zombie, nullptr, 0);
}

TEST(FrozenTasks, AStopThatIsTakenBackLeavesNothing) {
  const Sleeper sleeper;
  const auto tasks = FrozenTasks::open({sleeper.identity()});
  ASSERT_TRUE(tasks);
  tasks->stop();
  sleeper.wait_for('T');
  tasks->let_go();
  sleeper.wait_for('S');
}

TEST(FrozenTasks, WithoutATracerItIsNotHeld) {
  const Sleeper sleeper;
  const auto tasks = FrozenTasks::open({sleeper.identity()});
  ASSERT_TRUE(tasks);
  const Status held = tasks->check_held_by(getpid());
  ASSERT_FALSE(held);
  EXPECT_NE(held.error().message.find(std::to_string(sleeper.pid())), std::string::npos);
}

// The heart of the matter: whoever traces it is killed, and it still does not run.
TEST(FrozenTasks, AStopHoldsWhenTheTracerDies) {
  const Sleeper sleeper;
  const pid_t tracer = fork();
  if (tracer == 0) {
    if (ptrace(PTRACE_SEIZE, sleeper.pid(), 0, 0) != 0) _exit(77);
    ptrace(PTRACE_INTERRUPT, sleeper.pid(), 0, 0);
    waitpid(sleeper.pid(), nullptr, 0);
    for (;;) pause();
  }
  int status = 0;
  while (sleeper.state() != 't') {
    if (waitpid(tracer, &status, WNOHANG) == tracer)
      GTEST_SKIP() << "NOT TESTED: what a tracer holds; ptrace is not allowed here";
    std::this_thread::sleep_for(milliseconds(1));
  }
  const auto tasks = FrozenTasks::open({sleeper.identity()});
  ASSERT_TRUE(tasks);
  EXPECT_TRUE(tasks->check_held_by(tracer));
  tasks->stop();
  EXPECT_TRUE(tasks->check_held_by(tracer));
  kill(tracer, SIGKILL);
  waitpid(tracer, nullptr, 0);
  sleeper.wait_for('T');
  EXPECT_FALSE(tasks->check_held_by(tracer));
  tasks->kill();
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(sleeper.pid()), &info, WEXITED | WNOWAIT), 0);
}

TEST(FrozenTasks, TheEndOfAKilledOneIsAwaited) {
  const Sleeper sleeper;
  const ProcessIdentity process = sleeper.identity();
  const auto tasks = FrozenTasks::open({process});
  ASSERT_TRUE(tasks);
  tasks->kill();
  tasks->await_end();
  EXPECT_FALSE(is_alive(process));
}

TEST(FrozenTasks, OneThatHasEndedIsLeftOut) {
  ProcessIdentity gone;
  {
    const Sleeper sleeper;
    gone = sleeper.identity();
  }
  const auto tasks = FrozenTasks::open({gone});
  ASSERT_TRUE(tasks);
  EXPECT_EQ(tasks->count(), 0u);
}

}  // namespace
}  // namespace ppmr
