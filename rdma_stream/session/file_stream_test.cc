#include "rdma_stream/session/file_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <thread>

namespace ppmr {
namespace {

struct FileStreamTest : testing::Test {
  // Cuts the next 10 bytes of the file.
  Chunk cut() { return file->cut({}, 0, 10, std::exchange(end, end + 10)); }

  std::shared_ptr<StickyError> error = std::make_shared<StickyError>();
  std::shared_ptr<FileStream> file = std::make_shared<FileStream>(7, error);
  uint64_t end = 0;
};

TEST_F(FileStreamTest, AnnouncesChunksInTheOrderInWhichTheyWereCut) {
  constexpr size_t kChunks = 200;
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < kChunks; ++i) chunks.push_back(cut());
  std::vector<uint64_t> announced;  // by one thread at a time
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = kChunks - 4 + first; i < kChunks; i -= 4) {
        file->announce_in_turn(std::move(chunks[i]), {.number = i},
                               [&](Chunk chunk, const wire::ChunkCheck& check) {
                                 EXPECT_EQ(chunk.turn, check.number);
                                 announced.push_back(chunk.turn);
                               });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(announced.size(), kChunks);
  EXPECT_TRUE(std::is_sorted(announced.begin(), announced.end()));
}

TEST_F(FileStreamTest, ChunkThatIsReadyTooEarlyIsAnnouncedAfterThePreviousChunk) {
  Chunk first = cut(), second = cut();
  std::vector<uint64_t> announced;
  const auto announce = [&](Chunk chunk, const wire::ChunkCheck&) {
    announced.push_back(chunk.turn);
  };
  file->announce_in_turn(std::move(second), {}, announce);
  EXPECT_TRUE(announced.empty());
  file->announce_in_turn(std::move(first), {}, announce);
  EXPECT_EQ(announced, (std::vector<uint64_t>{0, 1}));
}

TEST_F(FileStreamTest, DrainWaitsForAllEarlierChunksButNotForLaterOnes) {
  const Chunk first = cut(), second = cut();
  std::atomic<bool> waits = false;
  std::atomic<bool> drained = false;
  std::thread waiter([&] {
    EXPECT_TRUE(file->drain([&] {
      waits = true;
      waits.notify_one();
      return false;
    }));
    drained = true;
  });
  waits.wait(false);
  const Chunk later = cut(), latest = cut();
  file->verified(later.turn, 1);  // drain() does not wait for this chunk
  file->verified(second.turn, 2);
  waits = false;
  waits.wait(false);  // drain() has checked again
  EXPECT_FALSE(drained) << "while the first chunk is in flight";
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

TEST_F(FileStreamTest, FirstErrorOfACheckpointIsFinalForAllItsFiles) {
  const auto other = std::make_shared<FileStream>(8, error);
  file->failed(cut().turn, Error{ENOSPC, "full"});
  file->failed(cut().turn, Error{EIO, "gone"});
  EXPECT_EQ(file->drain(nullptr).error().errno_value, ENOSPC);
  EXPECT_EQ(other->checkpoint_error()->status().error().message, "full");
}

TEST_F(FileStreamTest, ResetSetsTheDigestToZero) {
  file->verified(cut().turn, 5);
  file->reset_digest();
  EXPECT_EQ(file->digest(), 0u);
}

// Tests which chunks wait for each other because their ranges overlap.
class OverlapTest : public FileStreamTest {
 protected:
  Chunk cut_range(uint64_t begin, uint64_t end) {
    return file->cut({}, 0, static_cast<uint32_t>(end - begin), begin);
  }
  // Announces in the background, as the call may block.
  std::future<void> announce(Chunk chunk) {
    return std::async(std::launch::async, [this, chunk = std::move(chunk)]() mutable {
      file->announce_in_turn(std::move(chunk), {}, [this](Chunk next, const wire::ChunkCheck&) {
        std::lock_guard lock(mutex);
        announced.push_back(next.turn);
      });
    });
  }
  bool is_announced(uint64_t turn) {
    std::lock_guard lock(mutex);
    return std::find(announced.begin(), announced.end(), turn) != announced.end();
  }

  std::mutex mutex;
  std::vector<uint64_t> announced;  // guarded by mutex
};

TEST_F(OverlapTest, ChunkWaitsWhileAnOverlappingChunkIsInFlight) {
  const uint64_t first = 0, adjacent = 1;
  announce(cut_range(0, 10)).wait();
  announce(cut_range(10, 20)).wait();
  auto overlapping = announce(cut_range(5, 15));
  file->verified(first, 0);
  EXPECT_EQ(overlapping.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_FALSE(is_announced(2));
  file->verified(adjacent, 0);
  overlapping.wait();
  EXPECT_TRUE(is_announced(2));
}

TEST_F(OverlapTest, FailedChunkNoLongerBlocksOverlappingOnes) {
  announce(cut_range(0, 10)).wait();
  auto overlapping = announce(cut_range(0, 1));
  file->failed(0, Error{EIO, "the session failed"});
  overlapping.wait();
  EXPECT_TRUE(is_announced(1));
}

TEST_F(OverlapTest, ChunksOfSeparateRangesDoNotWaitForEachOther) {
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t writer = 0; writer < 8; ++writer) {
      const uint64_t begin = writer * 1000 + round * 10;
      announce(cut_range(begin, begin + 10)).wait();
    }
  }
  EXPECT_EQ(announced.size(), 800u);
}

// The chunks have more gaps than the file can record.
TEST_F(OverlapTest, ChunkThatIsMarkedAsApartNeverWaits) {
  for (uint64_t i = 0; i < 20; ++i) {
    Chunk chunk = cut_range(10'000 * (i * 7 % 20), 10'000 * (i * 7 % 20) + 10);
    chunk.apart = true;
    const uint64_t turn = chunk.turn;
    ASSERT_EQ(announce(std::move(chunk)).wait_for(std::chrono::seconds(10)),
              std::future_status::ready);
    EXPECT_TRUE(is_announced(turn));
  }
  auto overlapping = announce(cut_range(0, 5));
  EXPECT_EQ(overlapping.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  for (uint64_t turn = 0; turn < 20; ++turn) file->verified(turn, 0);
  overlapping.wait();
}

TEST_F(OverlapTest, OverlappingChunksAreNeverInFlightTogether) {
  struct InFlight {
    uint64_t turn, begin, end;
  };
  std::mt19937_64 random(1);
  std::vector<InFlight> in_flight;  // guarded by mutex
  std::condition_variable changed;
  bool done = false;
  std::thread target([&] {  // finishes chunks in random order
    std::mt19937_64 choice(2);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return done || !in_flight.empty(); });
      if (in_flight.empty()) return;
      std::swap(in_flight[choice() % in_flight.size()], in_flight.back());
      const uint64_t turn = in_flight.back().turn;
      in_flight.pop_back();
      lock.unlock();
      file->verified(turn, 0);
      lock.lock();
    }
  });
  for (int i = 0; i < 5000; ++i) {
    const uint64_t begin = random() % 1000;
    file->announce_in_turn(
        cut_range(begin, begin + 1 + random() % 20), {}, [&](Chunk chunk, const wire::ChunkCheck&) {
          const InFlight mine{chunk.turn, chunk.offset, chunk.offset + chunk.length};
          std::lock_guard lock(mutex);
          for (const InFlight& other : in_flight) {
            EXPECT_FALSE(other.begin < mine.end && mine.begin < other.end);
          }
          in_flight.push_back(mine);
          changed.notify_one();
        });
  }
  {
    std::lock_guard lock(mutex);
    done = true;
  }
  changed.notify_one();
  target.join();
}

}  // namespace
}  // namespace ppmr
