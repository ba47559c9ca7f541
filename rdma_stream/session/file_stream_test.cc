#include "rdma_stream/session/file_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  constexpr size_t kChunks = 200;
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < kChunks; ++i) chunks.push_back(cut());
  std::vector<uint64_t> announced;  // by one thread at a time
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = kChunks - 4 + first; i < kChunks; i -= 4) {
        file->announce_in_turn(std::move(chunks[i]), static_cast<uint32_t>(i),
                               [&](Chunk chunk, uint32_t crc) {
                                 EXPECT_EQ(chunk.turn, crc);
                                 announced.push_back(chunk.turn);
                               });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(announced.size(), kChunks);
  EXPECT_TRUE(std::is_sorted(announced.begin(), announced.end()));
}

TEST_F(FileStreamTest, AChunkThatIsEarlyIsLeftToWhoAnnouncesTheOneBefore) {
  Chunk first = cut(), second = cut();
  std::vector<uint64_t> announced;
  const auto announce = [&](Chunk chunk, uint32_t) { announced.push_back(chunk.turn); };
  file->announce_in_turn(std::move(second), 0, announce);
  EXPECT_TRUE(announced.empty());
  file->announce_in_turn(std::move(first), 0, announce);
  EXPECT_EQ(announced, (std::vector<uint64_t>{0, 1}));
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
