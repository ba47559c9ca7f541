#include "migration/relay/held_locks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/unique_fd.h"
#include "processes/memory/injected_calls.h"
#include "processes/test_process.h"

namespace ppmr {
namespace {

using namespace std::chrono_literals;

TEST(HeldLocks, ReadsTheLocksOfOpenFileDescriptions) {
  carried::FileLock lock;
  ASSERT_EQ(parse_lock("lock:\t1: FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF", lock),
            LockOwner::kDescription);
  EXPECT_TRUE(lock.is_flock() && lock.is_exclusive());
  EXPECT_EQ(lock.length(), 0u);
  carried::FileLock range;
  ASSERT_EQ(parse_lock("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:78 5 14", range),
            LockOwner::kDescription);
  EXPECT_FALSE(range.is_flock() || range.is_exclusive());
  EXPECT_EQ(range.start(), 5u);
  EXPECT_EQ(range.length(), 10u);
}

TEST(HeldLocks, ReadsTheLocksOfProcesses) {
  carried::FileLock lock;
  ASSERT_EQ(parse_lock("lock:\t2: POSIX  ADVISORY  WRITE 412 fe:00:77 100 199", lock),
            LockOwner::kProcess);
  EXPECT_TRUE(lock.is_exclusive());
  EXPECT_EQ(lock.start(), 100u);
  EXPECT_EQ(lock.length(), 100u);
}

TEST(HeldLocks, LeavesOtherLinesAlone) {
  carried::FileLock lock;
  for (const char* line : {"", "pos:\t0", "lock:\t1: LEASE  ACTIVE    WRITE 412 fe:00:77 0 EOF",
                           "lock:\t1: -> FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF",
                           "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:78 9 8",
                           "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:78 9 x"}) {
    EXPECT_EQ(parse_lock(line, lock), LockOwner::kNone) << line;
  }
}

// A file with a lock, in this process and in the state.
class ALockedFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/locked-" + std::to_string(getpid());
    file_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_);
    ASSERT_EQ(flock(file_.get(), LOCK_EX), 0);
    tasks_ = {identify_self()};
    state_.add_process()->add_pid(getpid());
    ASSERT_TRUE(read_locks(tasks_, state_));
  }
  void TearDown() override { std::filesystem::remove(path_); }
  // Moves the lock to another open file description, as if another program had it.
  UniqueFd lose_to_another() {
    flock(file_.get(), LOCK_UN);
    UniqueFd other(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(flock(other.get(), LOCK_EX | LOCK_NB), 0);
    return other;
  }
  bool is_free() const {
    const UniqueFd other(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    return flock(other.get(), LOCK_EX | LOCK_NB) == 0;
  }

  std::string path_;
  UniqueFd file_;
  std::vector<ProcessIdentity> tasks_;
  carried::State state_;
};

TEST_F(ALockedFile, IsLockedAgainInTheSameDescription) {
  ASSERT_TRUE(carries_locks(state_));
  flock(file_.get(), LOCK_UN);
  ASSERT_TRUE(is_free());
  EXPECT_TRUE(take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms));
  EXPECT_FALSE(is_free());
}

TEST_F(ALockedFile, ThatBothNodesShareIsLeftToTheSourceUntilItsEnd) {
  UniqueFd source = lose_to_another();
  EXPECT_TRUE(take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms));
  const Status early = take_locks(state_, tasks_, LockTurn::kAfterDecision, 0ms);
  ASSERT_FALSE(early) << "the source still has it";
  EXPECT_EQ(early.error().errno_value, EBUSY);
  EXPECT_NE(early.error().message.find(std::filesystem::path(path_).filename()), std::string::npos);
  source.reset();
  EXPECT_TRUE(take_locks(state_, tasks_, LockTurn::kAfterDecision, 0ms));
  EXPECT_FALSE(is_free());
}

TEST_F(ALockedFile, ThatAnotherProgramHasLockedAtTheTargetStopsTheMove) {
  state_.mutable_process(0)->mutable_lock(0)->set_inode(1);  // the source's file is another one
  const UniqueFd other = lose_to_another();
  const Status taken = take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().errno_value, EBUSY);
}

TEST_F(ALockedFile, OfAProcessThatIsMissingIsNotForgotten) {
  state_.mutable_process(0)->set_pid(0, getpid() + 1);
  EXPECT_FALSE(take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms));
}

// Another process with a lock of its own, which only it can take again.
class AProcessWithALock : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/locked-by-process-" + std::to_string(getpid());
    file_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_);
    process_.emplace([this] { (void)fcntl(file_.get(), F_SETLK, &all_); });
    tasks_ = {*identify(process_->pid())};
    state_.add_process()->add_pid(process_->pid());
    ASSERT_TRUE(read_locks(tasks_, state_));
    ASSERT_TRUE(carries_process_locks(state_));
  }
  void TearDown() override { std::filesystem::remove(path_); }
  // Returns the pid of the lock's holder; 0: the lock is free.
  pid_t holder() const {
    struct flock asked = all_;
    EXPECT_EQ(fcntl(file_.get(), F_GETLK, &asked), 0);
    return asked.l_type == F_UNLCK ? 0 : asked.l_pid;
  }
  Status let_unlock() {
    return with_injected_calls(process_->pid(), [&](InjectedCalls& calls) -> Status {
      std::array<uint64_t, 4> words{};
      struct flock none = all_;
      none.l_type = F_UNLCK;
      std::memcpy(words.data(), &none, sizeof(none));
      const auto fd = static_cast<uint64_t>(file_.get());
      const auto answer = calls.call_with_memory(SYS_fcntl, {fd, F_SETLK, 0}, 2, words);
      return answer ? Status{} : failure(answer.error());
    });
  }

  struct flock all_ = {
      .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0, .l_pid = 0};
  std::string path_;
  UniqueFd file_;
  std::optional<TestProcess> process_;
  std::vector<ProcessIdentity> tasks_;
  carried::State state_;
};

TEST_F(AProcessWithALock, TakesTheLockAgain) {
  if (Status unlocked = let_unlock(); !unlocked) {
    if (unlocked.error().errno_value != EOPNOTSUPP) FAIL() << unlocked.error().message;
    GTEST_SKIP() << "NOT TESTED: injected calls: " << unlocked.error().message;
  }
  ASSERT_EQ(holder(), 0);
  const Status taken = take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms);
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(holder(), process_->pid());
}

TEST_F(AProcessWithALock, WaitsWhileTheSourceHasTheLock) {
  if (Status unlocked = let_unlock(); !unlocked) {
    if (unlocked.error().errno_value != EOPNOTSUPP) FAIL() << unlocked.error().message;
    GTEST_SKIP() << "NOT TESTED: injected calls: " << unlocked.error().message;
  }
  TestProcess source([this] {
    if (fcntl(file_.get(), F_SETLK, &all_) != 0) _exit(1);
  });
  EXPECT_TRUE(take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms));
  const Status early = take_locks(state_, tasks_, LockTurn::kAfterDecision, 0ms);
  ASSERT_FALSE(early) << "the source still has it";
  EXPECT_EQ(early.error().errno_value, EBUSY);
  carried::State other = state_;
  other.mutable_process(0)->mutable_process_lock(0)->set_inode(1);
  EXPECT_FALSE(take_locks(other, tasks_, LockTurn::kBeforeVote, 0ms)) << "not the source's file";
  source.end();
  EXPECT_TRUE(take_locks(state_, tasks_, LockTurn::kAfterDecision, 0ms));
  EXPECT_EQ(holder(), process_->pid());
}

TEST_F(AProcessWithALock, IsRefusedIfOnlyCriuCouldTakeTheLockOfASharedFile) {
  carried::State other = state_;
  other.mutable_process(0)->mutable_process_lock(0)->set_inode(1);
  EXPECT_TRUE(leave_process_locks(other));
  EXPECT_FALSE(carries_locks(other));
  const Status left = leave_process_locks(state_);
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().errno_value, ENOTSUP);
}

}  // namespace
}  // namespace ppmr
