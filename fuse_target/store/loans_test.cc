#include "fuse_target/store/loans.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class LoansTest : public testing::Test {
 protected:
  // Returns a loan of one extent that belongs to no file.
  FileLoan loan_of_an_extent() {
    FileLoan loan;
    loan.size_bytes = loan.end = kExtentBytes;
    loan.blocks.push_back(memory_->allocate(kExtentBytes));
    EXPECT_TRUE(loan.blocks[0]);
    loan.regions.push_back(loan.blocks[0].descriptor());
    loan.pieces.push_back({0, kExtentBytes, 0, loan.blocks[0].region_offset()});
    return loan;
  }
  UniqueFd lend() {
    auto added = loans_->add(loan_of_an_extent());
    EXPECT_TRUE(added);
    return std::move(added->borrowers_end);
  }
  size_t used_extents() const { return memory_->counters().used_bytes / kExtentBytes; }
  bool becomes(size_t extents) {
    const auto deadline = steady_clock::now() + milliseconds(5000);
    while (used_extents() != extents && steady_clock::now() < deadline) ::usleep(1000);
    return used_extents() == extents;
  }

  std::unique_ptr<StoreMemory> memory_ =
      std::move(*StoreMemory::create({kLimitMinBytes, 0, 0}, nullptr));
  std::unique_ptr<Loans> loans_ = std::move(*Loans::create());
};

TEST_F(LoansTest, LoanKeepsItsBlockUntilTheBorrowersEndIsClosed) {
  UniqueFd first = lend();
  UniqueFd second = lend();
  EXPECT_EQ(loans_->counters().loans, 2u);
  EXPECT_EQ(loans_->counters().bytes, 2 * kExtentBytes);
  ::usleep(50'000);
  EXPECT_EQ(used_extents(), 2u);
  first.reset();
  EXPECT_TRUE(becomes(1));
  ::usleep(50'000);
  EXPECT_EQ(used_extents(), 1u) << "the end of one loan ended another";
  second.reset();
  EXPECT_TRUE(becomes(0));
  EXPECT_EQ(loans_->counters().loans, 0u);
  EXPECT_EQ(loans_->counters().bytes, 0u);
}

TEST_F(LoansTest, LoanKeepsAllItsParts) {
  auto added = loans_->add(loan_of_an_extent());
  ASSERT_TRUE(added);
  ASSERT_TRUE(loans_->extend(added->id, loan_of_an_extent()));
  EXPECT_EQ(loans_->counters().loans, 1u);
  EXPECT_EQ(loans_->counters().bytes, 2 * kExtentBytes);
  EXPECT_EQ(used_extents(), 2u);
  added->borrowers_end.reset();
  EXPECT_TRUE(becomes(0));
  EXPECT_EQ(loans_->counters().bytes, 0u);
  EXPECT_EQ(loans_->extend(added->id, loan_of_an_extent()).error().errno_value, ENOENT);
}

TEST_F(LoansTest, LentBlocksCountAgainstTheLimit) {
  std::vector<UniqueFd> ends;
  for (size_t i = 0; i < kLimitMinBytes / kExtentBytes; ++i) ends.push_back(lend());
  EXPECT_FALSE(memory_->allocate(kExtentBytes));
  ends.clear();
  EXPECT_TRUE(becomes(0));
  EXPECT_TRUE(memory_->allocate(kExtentBytes));
}

TEST_F(LoansTest, StoppedBorrowerKeepsItsLoanAndAKilledBorrowerLosesIt) {
  UniqueFd end = lend();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  end.reset();
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  lend().reset();  // shows that a stopped borrower delays no other borrower
  EXPECT_TRUE(becomes(1));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(becomes(0));
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(LoansTest, BorrowerThatWritesToItsEndChangesNothing) {
  UniqueFd end = lend();
  const std::vector<char> bytes(1 << 20);
  EXPECT_GT(::write(end.get(), bytes.data(), bytes.size()), 0);
  // When the end of this later loan has been noticed, the bytes in the pipe have been noticed too.
  lend().reset();
  EXPECT_TRUE(becomes(1));
  end.reset();
  EXPECT_TRUE(becomes(0));
}

TEST_F(LoansTest, EndOfTheDaemonDoesNotWaitForBorrowers) {
  UniqueFd end = lend();
  loans_.reset();
  EXPECT_EQ(used_extents(), 0u);
}

}  // namespace
}  // namespace ppmr
