#include "migration/relay/source_driver.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "processes/proc_files.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

RecordStore store() { return *RecordStore::open(testing::TempDir() + "/state"); }

// CRIU has ended, but a task has not taken its SIGSTOP yet.
TEST(ResumeSource, UndoesAStopThatIsStillPending) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    for (;;) {
      if (write(ends[1], "x", 1) != 1) _exit(0);
    }
  }
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  // Holds the process as CRIU holds a task.
  ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  kill(pid, SIGSTOP);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  while (read(ends[0], &byte, 1) == 1) {
  }
  OwnershipRecord record;
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  record.tasks_stopped = true;
  const ProcessIdentity task = identify(pid).value();
  TreeRecord tree;
  tree.root = pid;
  tree.root_start_time = task.start_time;
  tree.tasks = {task};
  record.trees = {tree};
  const Status resumed = resume_source(store(), record);
  EXPECT_TRUE(resumed) << resumed.error().message;
  ASSERT_EQ(ptrace(PTRACE_DETACH, pid, nullptr, nullptr), 0);
  pollfd next{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&next, 1, 10'000), 1) << "it stands still";
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(ends[0]);
}

// The relay of this CRIU was killed a moment ago.
TEST(ResumeSource, WaitsForTheEndOfCriu) {
  const pid_t criu = fork();
  if (criu == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  OwnershipRecord record;
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  TreeRecord tree;
  tree.criu = identify(criu).value();
  record.trees = {tree};
  // Ends the CRIU when the main thread waits for its end.
  std::thread ends([criu] {
    for (auto self = read_process_stat(getpid()); self && self->state != 'S';
         self = read_process_stat(getpid())) {
      std::this_thread::yield();
    }
    kill(criu, SIGKILL);
  });
  const Status resumed = resume_source(store(), record);
  ends.join();
  EXPECT_TRUE(resumed) << resumed.error().message;
  waitpid(criu, nullptr, 0);
}

// Returns a record of tasks that were frozen here.
OwnershipRecord record_of(const std::vector<const TestProcess*>& tasks) {
  OwnershipRecord record;
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  record.tasks_stopped = true;
  record.trees.emplace_back();
  for (const TestProcess* task : tasks) {
    record.trees[0].tasks.push_back(identify(task->pid()).value());
  }
  return record;
}

TEST(HomeOf, StaysThisBootWhenDescriptorsRunOut) {
  const OwnershipRecord record = record_of({});
  const FewDescriptors none(0);
  EXPECT_EQ(home_of(record), Home::kThisBoot);
}

// One descriptor suffices for the pidfd of a task, but then /proc cannot be read.
TEST(ResumeSource, FailsIfDescriptorsRunOut) {
  const TestProcess one;
  const TestProcess other;
  const OwnershipRecord record = record_of({&one, &other});
  const RecordStore records = store();
  for (const size_t free : {0u, 1u, 2u}) {
    const FewDescriptors few(free);
    EXPECT_FALSE(resume_source(records, record)) << free;
  }
  EXPECT_TRUE(resume_source(records, record));
}

TEST(KillTasks, FailsIfDescriptorsRunOut) {
  const TestProcess one;
  const TestProcess other;
  const OwnershipRecord record = record_of({&one, &other});
  for (const size_t free : {0u, 1u, 2u}) {
    const FewDescriptors few(free);
    EXPECT_FALSE(kill_tasks_of(record)) << free;
  }
  EXPECT_TRUE(kill_tasks_of(record));
}

// Another target is mounted at the mountpoint now, or the target's daemon has another state
// directory.
TEST(TargetSays, CountsAMissingRecordOnlyAtTheTargetOfTheMigration) {
  OwnershipRecord record;
  record.peer = "two";
  record.peer_node_id = "id 2";
  record.peer_state_directory = "/state";
  const auto denial = [](const char* node_id, const char* state_directory) {
    return nlohmann::json{{"ok", false},          {"errno", ENOENT},
                          {"error", "no record"}, {"no_record", true},
                          {"node_id", node_id},   {"state_directory", state_directory}};
  };
  const auto denied = target_says(denial("id 2", "/state"), record, "renamed");
  ASSERT_TRUE(denied) << denied.error().message;
  EXPECT_FALSE(denied->target.has_record);
  for (const auto& answer : {denial("id 3", "/state"), denial("id 2", "/elsewhere")}) {
    const auto other = target_says(answer, record, "two");
    ASSERT_FALSE(other) << answer;
    EXPECT_EQ(other.error().errno_value, EXDEV);
  }
}

TEST(TargetSays, UnderstandsTheAgentOfVersion020) {
  const nlohmann::json denial{{"ok", false}, {"errno", ENOENT}, {"error", "no record"}};
  OwnershipRecord record;
  record.peer = "two";
  record.peer_node_id = "id 2";
  EXPECT_TRUE(target_says(denial, record, "two"));
  EXPECT_FALSE(target_says(denial, record, "three"));
}

TEST(TargetSays, TakesNoOtherMissingFileForAMissingRecord) {
  const nlohmann::json refusal{
      {"ok", false}, {"errno", ENOENT}, {"error", "start ppmr"}, {"no_record", false}};
  const auto says = target_says(refusal, {}, "two");
  ASSERT_FALSE(says);
  EXPECT_EQ(says.error().errno_value, ENOENT);
}

TEST(KillTasks, FailsWithoutTheRightToEndThem) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give up a right";
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  OwnershipRecord record;
  record.node_id = read_node_id();
  record.boot_id = read_boot_id();
  record.trees.emplace_back();
  record.trees[0].tasks = {identify(process).value()};
  const pid_t other_user = fork();
  if (other_user == 0) {
    if (setresuid(54321, 54321, 54321) != 0) _exit(1);
    const Status killed = kill_tasks_of(record);
    _exit(killed ? 0 : killed.error().errno_value);
  }
  int status = 0;
  waitpid(other_user, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), EPERM);
  EXPECT_TRUE(kill_tasks_of(record));
  waitpid(process, &status, 0);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace ppmr
