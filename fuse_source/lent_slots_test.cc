#include "fuse_source/lent_slots.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>

namespace ppmr {
namespace {

using std::chrono::seconds;

constexpr size_t kChunk = 64 << 10;

class LentSlotsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pool = BufferPool::create(kChunk, kChunk);
    ASSERT_TRUE(pool) << pool.error().message;
    pool_ = std::move(*pool);
    ASSERT_EQ(pool_->slot_count(), 1u);
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours_ = UniqueFd(ends[0]);
    readers_ = UniqueFd(ends[1]);
  }

  std::unique_ptr<BufferPool> pool_;
  UniqueFd ours_;
  UniqueFd readers_;
};

TEST_F(LentSlotsTest, SlotIsFreeWhenTheReaderHasReplied) {
  LentSlots lent;
  lent.keep(pool_->try_acquire(), std::move(ours_));
  EXPECT_FALSE(pool_->try_acquire());
  ASSERT_EQ(send(readers_.get(), "reply", 5, 0), 5);
  EXPECT_TRUE(pool_->acquire(seconds(60)));
}

TEST_F(LentSlotsTest, SlotIsFreeWhenTheReaderHasEnded) {
  LentSlots lent;
  lent.keep(pool_->try_acquire(), std::move(ours_));
  EXPECT_FALSE(pool_->try_acquire());
  readers_.reset();
  EXPECT_TRUE(pool_->acquire(seconds(60)));
}

TEST_F(LentSlotsTest, EndOfTheMountFreesTheSlotsOfReadersThatNeverReply) {
  {
    LentSlots lent;
    lent.keep(pool_->try_acquire(), std::move(ours_));
  }
  EXPECT_TRUE(pool_->try_acquire());
}

}  // namespace
}  // namespace ppmr
