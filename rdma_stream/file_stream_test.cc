#include "rdma_stream/file_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

struct FileStreamTest : testing::Test {
  Chunk cut() { return file->cut({}, 0, 10, 0); }

  std::shared_ptr<StickyError> error = std::make_shared<StickyError>();
  std::shared_ptr<FileStream> file = std::make_shared<FileStream>(7, error);
};

TEST_F(FileStreamTest, ChunksAreAnnouncedInTheOrderInWhichTheyWereCut) {
  std::vector<Chunk> chunks;
  for (int i = 0; i < 4; ++i) chunks.push_back(cut());
  std::mutex mutex;
  std::vector<uint64_t> announced;
  std::vector<std::thread> threads;
  for (size_t i = chunks.size(); i > 0; --i) {
    threads.emplace_back([&, turn = chunks[i - 1].turn] {
      file->await_turn(turn);
      {
        std::lock_guard lock(mutex);
        announced.push_back(turn);
      }
      file->announced();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(announced, (std::vector<uint64_t>{0, 1, 2, 3}));
}

TEST_F(FileStreamTest, DrainWaitsForEveryChunkCutBeforeAndNoOther) {
  const Chunk first = cut(), second = cut();
  std::atomic<bool> waits = false;
  std::atomic<bool> drained = false;
  std::thread waiter([&] {
    EXPECT_TRUE(file->drain([&] {
      waits = true;
      return false;
    }));
    drained = true;
  });
  while (!waits) std::this_thread::sleep_for(milliseconds(1));
  const Chunk later = cut(), latest = cut();
  file->verified(later.turn, 1);  // by another stream: not one of those waited for
  file->verified(second.turn, 2);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(drained) << "with the first chunk still under way";
  file->verified(first.turn, 4);
  waiter.join();
  EXPECT_EQ(file->digest(), 7u);
}

TEST_F(FileStreamTest, DrainCanBeInterrupted) {
  cut();
  auto drained = file->drain([] { return true; });
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, EINTR);
}

TEST_F(FileStreamTest, TheFirstErrorOfACheckpointStaysForAllItsFiles) {
  const auto other = std::make_shared<FileStream>(8, error);
  file->failed(cut().turn, Error{ENOSPC, "full"});
  file->failed(cut().turn, Error{EIO, "gone"});
  EXPECT_EQ(file->drain(nullptr).error().errno_value, ENOSPC);
  EXPECT_EQ(other->checkpoint_error()->status().error().message, "full");
}

TEST_F(FileStreamTest, ADigestCanBeginAgain) {
  file->verified(cut().turn, 5);
  file->reset_digest();
  EXPECT_EQ(file->digest(), 0u);
}

}  // namespace
}  // namespace ppmr
