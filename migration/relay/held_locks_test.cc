#include "migration/relay/held_locks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

using namespace std::chrono_literals;

TEST(HeldLocks, ReadsTheLocksOfOpenFileDescriptions) {
  carried::FileLock lock;
  ASSERT_TRUE(parse_lock("lock:\t1: FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF", lock));
  EXPECT_TRUE(lock.is_flock() && lock.is_exclusive());
  EXPECT_EQ(lock.length(), 0u);
  carried::FileLock range;
  ASSERT_TRUE(parse_lock("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:78 5 14", range));
  EXPECT_FALSE(range.is_flock() || range.is_exclusive());
  EXPECT_EQ(range.start(), 5u);
  EXPECT_EQ(range.length(), 10u);
}

TEST(HeldLocks, LeavesOtherLinesAlone) {
  carried::FileLock lock;
  for (const char* line : {"", "pos:\t0", "lock:\t1: POSIX  ADVISORY  WRITE 412 fe:00:77 0 EOF",
                           "lock:\t1: LEASE  ACTIVE    WRITE 412 fe:00:77 0 EOF",
                           "lock:\t1: -> FLOCK  ADVISORY  WRITE 412 fe:00:77 0 EOF",
                           "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:78 9 8",
                           "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:78 9 x"}) {
    EXPECT_FALSE(parse_lock(line, lock)) << line;
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
  // The lock goes to another open file description, as if another program had it.
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

TEST_F(ALockedFile, ThatAnotherProgramAtTheTargetHasStopsTheMove) {
  state_.mutable_process(0)->mutable_lock(0)->set_inode(1);  // the source's is another file
  const UniqueFd other = lose_to_another();
  const Status taken = take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().errno_value, EBUSY);
}

TEST_F(ALockedFile, OfAProcessThatIsMissingIsNotForgotten) {
  state_.mutable_process(0)->set_pid(0, getpid() + 1);
  EXPECT_FALSE(take_locks(state_, tasks_, LockTurn::kBeforeVote, 0ms));
}

}  // namespace
}  // namespace ppmr
