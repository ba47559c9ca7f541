#include "processes/frozen_tasks.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

ProcessIdentity identity_of(const TestProcess& process) { return *identify(process.pid()); }

// waitid() reports to the parent when SIGSTOP has stopped a child, or SIGCONT has continued it.
bool await_stopped(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED) == 0;
}
bool await_continued(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WCONTINUED) == 0;
}

TEST(ProcessIdentity, IncludesTheStartTime) {
  const TestProcess sleeper;
  ProcessIdentity process = identity_of(sleeper);
  EXPECT_TRUE(is_alive(process));
  ++process.start_time;
  EXPECT_FALSE(is_alive(process));
}

TEST(BootId, StaysKnownWhenDescriptorsRunOut) {
  const std::string boot_id = read_boot_id();
  const std::string node_id = read_node_id();
  ASSERT_TRUE(boot_id.ends_with('\n'));
  const FewDescriptors none(0);
  EXPECT_EQ(read_boot_id(), boot_id);
  EXPECT_EQ(read_node_id(), node_id);
}

TEST(ProcessIdentity, ProcessThatCannotBeReadDoesNotCountAsDead) {
  const TestProcess sleeper;
  const ProcessIdentity process = identity_of(sleeper);
  const FewDescriptors none(0);
  const auto alive = check_alive(process);
  ASSERT_FALSE(alive);
  EXPECT_EQ(alive.error().errno_value, EMFILE);
  EXPECT_TRUE(is_alive(process));
  EXPECT_FALSE(is_ending(process));
}

TEST(CheckIdentity, DetectsAReusedPidAnEndedProcessAndAReboot) {
  TestProcess sleeper;
  const ProcessIdentity process = identity_of(sleeper);
  EXPECT_TRUE(check_identity(process, read_boot_id()));
  const Status reused = check_identity({process.pid, process.start_time - 1}, read_boot_id());
  ASSERT_FALSE(reused);
  EXPECT_EQ(reused.error().errno_value, ESRCH);
  EXPECT_NE(reused.error().message.find("another process (frozen_tasks_te) has its pid"),
            std::string::npos)
      << reused.error().message;
  const Status rebooted = check_identity(process, "another boot\n");
  ASSERT_FALSE(rebooted);
  EXPECT_NE(rebooted.error().message.find("rebooted"), std::string::npos);
  sleeper.end();
  EXPECT_FALSE(check_identity(process, read_boot_id()));
}

TEST(FrozenTasks, ProcessHasEndedIfAThreadHasItsPid) {
  std::promise<pid_t> started;
  std::promise<void> end;
  std::thread thread([&] {
    started.set_value(gettid());
    end.get_future().wait();
  });
  const auto opened = FrozenTasks::open({{started.get_future().get(), 1}});
  end.set_value();
  thread.join();
  EXPECT_TRUE(opened) << opened.error().message;
}

TEST(TasksOfTree, ContainsDescendantsButNoZombies) {
  const TestProcess one;
  const TestProcess other;
  const auto tasks = tasks_of_tree(getpid());
  ASSERT_TRUE(tasks);
  EXPECT_EQ(tasks->front(), identify_self());
  EXPECT_NE(std::find(tasks->begin(), tasks->end(), identity_of(one)), tasks->end());
  EXPECT_NE(std::find(tasks->begin(), tasks->end(), identity_of(other)), tasks->end());
  EXPECT_FALSE(tasks_of_tree(0));
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(tasks_of_tree(getpid())->size(), tasks->size());
  waitpid(zombie, nullptr, 0);
}

// The kernel gives the last free descriptor to the pidfd, so /proc cannot be read.
TEST(FrozenTasks, OpenSkipsNoLiveTaskWhenDescriptorsRunOut) {
  const TestProcess sleepers[3];
  std::vector<ProcessIdentity> tasks;
  for (const TestProcess& sleeper : sleepers) tasks.push_back(identity_of(sleeper));
  for (size_t free = 0; free < 6; ++free) {
    const FewDescriptors few(free);
    const auto opened = FrozenTasks::open(tasks);
    if (opened) {
      EXPECT_EQ(opened->count(), 3u) << free;
    } else {
      EXPECT_EQ(opened.error().errno_value, EMFILE) << free;
    }
  }
}

TEST(StopTrees, StopsAllOrFailsWhenDescriptorsRunOut) {
  const TestProcess parent([] { new TestProcess; });
  const ProcessIdentity root = identity_of(parent);
  for (size_t free = 0; free < 6; ++free) {
    const FewDescriptors few(free);
    const auto stopped = stop_trees({root});
    if (stopped) {
      EXPECT_EQ(stopped->count(), 2u) << free;
    } else {
      EXPECT_EQ(stopped.error().errno_value, EMFILE) << free;
    }
  }
}

// One descriptor lists /proc, but no process can be read.
TEST(ReadAllProcesses, FailsWhenDescriptorsRunOut) {
  const FewDescriptors few(1);
  const auto processes = read_all_processes();
  ASSERT_FALSE(processes);
  EXPECT_EQ(processes.error().errno_value, EMFILE);
}

TEST(StopTrees, StopsDescendants) {
  const TestProcess parent([] { new TestProcess; });
  const auto tree = tasks_of_tree(parent.pid());
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->size(), 2u);
  const auto stopped = stop_trees({identity_of(parent)});
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->count(), 2u);
  EXPECT_TRUE(await_stopped(parent.pid()));
  const auto child = read_process_status((*tree)[1].pid);
  const auto state = read_process_stat((*tree)[1].pid);
  ASSERT_TRUE(child && state);
  EXPECT_TRUE(state->state == 'T' || child->is_pending(SIGSTOP));
}

TEST(FrozenTasks, ResumeUndoesStop) {
  const TestProcess sleeper;
  const auto tasks = FrozenTasks::open({identity_of(sleeper)});
  ASSERT_TRUE(tasks);
  tasks->stop();
  EXPECT_TRUE(await_stopped(sleeper.pid()));
  tasks->resume();
  EXPECT_TRUE(await_continued(sleeper.pid()));
}

TEST(FrozenTasks, TracerCheckFailsAndReportsThePidOfAnUntracedTask) {
  const TestProcess sleeper;
  const auto tasks = FrozenTasks::open({identity_of(sleeper)});
  ASSERT_TRUE(tasks);
  const Status held = tasks->check_held_by(getpid());
  ASSERT_FALSE(held);
  EXPECT_NE(held.error().message.find(std::to_string(sleeper.pid())), std::string::npos);
}

TEST(FrozenTasks, StopKeepsTaskStoppedWhenTheTracerIsKilled) {
  const TestProcess sleeper;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t tracer = fork();
  if (tracer == 0) {
    if (ptrace(PTRACE_SEIZE, sleeper.pid(), 0, 0) != 0) _exit(77);
    ptrace(PTRACE_INTERRUPT, sleeper.pid(), 0, 0);
    waitpid(sleeper.pid(), nullptr, 0);
    (void)!write(ready[1], "", 1);
    for (;;) pause();
  }
  close(ready[1]);
  char byte = 0;
  const bool traced = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  if (!traced) {
    waitpid(tracer, nullptr, 0);
    GTEST_SKIP() << "NOT TESTED: tasks that a tracer holds (ptrace is not permitted here)";
  }
  const auto tasks = FrozenTasks::open({identity_of(sleeper)});
  ASSERT_TRUE(tasks);
  EXPECT_TRUE(tasks->check_held_by(tracer));
  tasks->stop();
  EXPECT_TRUE(tasks->check_held_by(tracer));
  kill(tracer, SIGKILL);
  waitpid(tracer, nullptr, 0);
  EXPECT_TRUE(await_stopped(sleeper.pid()));
  EXPECT_FALSE(tasks->check_held_by(tracer));
  tasks->kill();
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(sleeper.pid()), &info, WEXITED | WNOWAIT), 0);
}

TEST(FrozenTasks, AwaitEndReturnsWhenKilledTasksHaveEnded) {
  const TestProcess sleeper;
  const ProcessIdentity process = identity_of(sleeper);
  const auto tasks = FrozenTasks::open({process});
  ASSERT_TRUE(tasks);
  tasks->kill();
  tasks->await_end();
  EXPECT_FALSE(is_alive(process));
}

TEST(FrozenTasks, AwaitEndReturnsFalseWhenATaskOutlivesTheTimeLimit) {
  const TestProcess sleeper;
  const auto tasks = FrozenTasks::open({identity_of(sleeper)});
  ASSERT_TRUE(tasks);
  EXPECT_FALSE(tasks->await_end(std::chrono::milliseconds(1)));
  tasks->kill();
  EXPECT_TRUE(tasks->await_end(std::chrono::seconds(30)));
}

TEST(FrozenTasks, OpenSkipsTasksThatHaveEnded) {
  TestProcess sleeper;
  const ProcessIdentity ended = identity_of(sleeper);
  sleeper.end();
  const auto tasks = FrozenTasks::open({ended});
  ASSERT_TRUE(tasks);
  EXPECT_EQ(tasks->count(), 0u);
}

}  // namespace
}  // namespace ppmr
