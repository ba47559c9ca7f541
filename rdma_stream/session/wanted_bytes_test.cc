// Tests bytes that the target requests before the source has announced them, and bytes that the
// source announces as zeros.

#include <atomic>
#include <future>
#include <mutex>
#include <semaphore>
#include <thread>

#include "tests/stream/greeting.h"

namespace ppmr {
namespace {

using Wants = std::vector<std::pair<uint64_t, uint64_t>>;  // offset and length

// A source that records the requests of the target.
class WantedBytes : public testing::Test {
 protected:
  void open(RigOptions options = {}, TestSourceOptions source = {}) {
    rig_ = std::make_unique<StreamRig>(std::move(options));
    source.events.bytes_wanted = [this](uint64_t node, uint64_t offset, uint64_t length) {
      std::lock_guard lock(mutex_);
      EXPECT_EQ(node, file_ == nullptr ? 0 : file_->node);
      wants_.emplace_back(offset, length);
    };
    source_ = std::make_unique<TestSource>(*rig_, std::move(source));
    ASSERT_TRUE(source_->opened());
    ASSERT_TRUE(source_->claim("checkpoint"));
    file_ = *source_->make_file("file");
    session_ = rig_->receiver().sessions().front().id;
  }
  void TearDown() override {
    source_.reset();
    rig_->end_receiver();
    EXPECT_EQ(rig_->sink().violations(), std::vector<std::string>{});
  }
  void want(uint64_t offset, uint64_t length) {
    rig_->receiver().want({session_, file_->node}, offset, length);
  }
  Wants wants() {
    std::lock_guard lock(mutex_);
    return wants_;
  }
  bool eventually_wanted(size_t count) {
    return eventually([&] { return wants().size() >= count; });
  }

  std::mt19937_64 random_{1};
  std::unique_ptr<StreamRig> rig_;
  std::unique_ptr<TestSource> source_;
  TestFile* file_ = nullptr;
  SessionId session_ = 0;
  std::mutex mutex_;
  Wants wants_;  // guarded by mutex_
};

TEST_F(WantedBytes, RequestReachesTheSourceOnceUntilTheBytesAreAnnounced) {
  open();
  want(1000, 500);
  want(1000, 500);
  want(1100, 50);
  want(1400, 200);  // more than was requested
  ASSERT_TRUE(eventually_wanted(2));
  EXPECT_EQ(wants(), (Wants{{1000, 500}, {1400, 200}}));
  ASSERT_TRUE(source_->write(*file_, 1000, 300, random_));
  ASSERT_TRUE(source_->drain(*file_));
  want(1100, 50);   // no longer part of a request
  want(1300, 200);  // still a part of a request
  want(9000, 1);
  ASSERT_TRUE(eventually_wanted(4));
  EXPECT_EQ(wants(), (Wants{{1000, 500}, {1400, 200}, {1100, 50}, {9000, 1}}));
}

TEST_F(WantedBytes, ZerosAnswerARequest) {
  open();
  want(1000, 500);
  ASSERT_TRUE(source_->sender().send(wire::Zeros{file_->node, 0, 10'000}));
  ASSERT_TRUE(eventually([&] { return rig_->sink().zeros().size() == 1; }));
  want(1000, 500);
  ASSERT_TRUE(eventually_wanted(2));
}

TEST_F(WantedBytes, RequestsOutOfRangeOrOfAnEndedSessionAreNotSent) {
  open();
  want(0, 0);
  want(UINT64_MAX, 10);
  want(10, UINT64_MAX);
  rig_->receiver().want({session_ + 1, file_->node}, 5, 5);
  want(7, 7);
  ASSERT_TRUE(eventually_wanted(1));
  EXPECT_EQ(wants(), (Wants{{7, 7}}));
}

// Messages in both directions arrive once and in order even if connections are lost.
TEST_F(WantedBytes, RequestsAndZerosAreRepeatedAfterALostConnection) {
  open();
  constexpr uint64_t kRounds = 12;
  Wants expected;
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint64_t i = 0; i < 5; ++i) {
      const uint64_t offset = (round * 5 + i) * 10'000;
      expected.emplace_back(offset, 10 + i);
      want(offset, 10 + i);
      ASSERT_TRUE(source_->sender().send(wire::Zeros{file_->node, offset + 5000, 10 + i}));
    }
    rig_->network().cut_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(round * 3));
  }
  ASSERT_TRUE(eventually_wanted(expected.size()));
  EXPECT_EQ(wants(), expected);
  ASSERT_TRUE(eventually([&] { return rig_->sink().zeros().size() >= expected.size(); }));
  Wants zeros;
  for (const wire::Zeros& one : rig_->sink().zeros()) {
    zeros.emplace_back(one.offset - 5000, one.length_bytes);
  }
  EXPECT_EQ(zeros, expected);
  EXPECT_GT(source_->sender().counters().reconnections, 0u);
}

// Chunks that are too long to be always pulled first. They land one by one, when the test permits
// it.
class QueuedChunks : public WantedBytes {
 protected:
  static constexpr size_t kChunk = 128 << 10;
  static constexpr size_t kQueued = 100;
  static constexpr size_t kInFlightMax = 34;  // 4 MiB, and the chunk that crosses this limit

  void SetUp() override {
    open({}, {.pool_slots = kQueued + 10, .chunk_size_bytes = kChunk, .stream_count = 1});
    rig_->sink().set_before_land([this] { permits_.acquire(); });
    for (size_t i = 0; i < kQueued; ++i) write(i * kChunk);
    await_announced(kQueued);
  }
  void write(uint64_t offset) {
    const std::vector<std::byte> bytes(kChunk - 64, std::byte{1});
    ASSERT_TRUE(source_->write(*file_, offset, bytes));
  }
  void await_announced(size_t chunks) {
    ASSERT_TRUE(eventually([&] {
      return rig_->sink().chunks_in_flight() + rig_->sink().landed_offsets().size() == chunks;
    }));
  }
  // Returns the number of chunks that land before this chunk.
  size_t position(uint64_t offset) {
    permits_.release(2 * kQueued);
    EXPECT_TRUE(source_->drain(*file_));
    const auto landed = rig_->sink().landed_offsets();
    return static_cast<size_t>(std::find(landed.begin(), landed.end(), offset) - landed.begin());
  }

  std::counting_semaphore<> permits_{0};
};

TEST_F(QueuedChunks, RequestedChunkIsPulledAheadOfTheQueue) {
  want((64 << 20) + 100, 10);
  ASSERT_TRUE(eventually_wanted(1));
  write(64 << 20);
  await_announced(kQueued + 1);
  EXPECT_LE(position(64 << 20), kInFlightMax);
}

TEST_F(QueuedChunks, SecondRequestFindsFewChunksInFlight) {
  constexpr size_t kLanded = kInFlightMax + 4;
  want(64 << 20, 10);
  ASSERT_TRUE(eventually_wanted(1));
  write(64 << 20);
  await_announced(kQueued + 1);
  permits_.release(kLanded);
  ASSERT_TRUE(eventually([&] { return rig_->sink().landed_offsets().size() == kLanded; }));
  want(80 << 20, 10);
  ASSERT_TRUE(eventually_wanted(2));
  write(80 << 20);
  await_announced(kQueued + 2);
  EXPECT_LE(position(80 << 20), kLanded + 3);
}

// A reader that only follows the writer must not shorten the pipeline.
TEST_F(QueuedChunks, RequestThatTheWriterFollowsLeavesManyChunksInFlight) {
  constexpr size_t kLanded = kInFlightMax + 4;
  want(kQueued * kChunk - 64, kChunk);
  ASSERT_TRUE(eventually_wanted(1));
  write(kQueued * kChunk - 64);
  await_announced(kQueued + 1);
  permits_.release(kLanded);
  ASSERT_TRUE(eventually([&] { return rig_->sink().landed_offsets().size() == kLanded; }));
  want(80 << 20, 10);
  ASSERT_TRUE(eventually_wanted(2));
  write(80 << 20);
  await_announced(kQueued + 2);
  EXPECT_GT(position(80 << 20), kLanded + 20);
}

TEST_F(WantedBytes, TargetForgetsTheOldestOfManyRequests) {
  open();
  constexpr uint64_t kRequests = 2000;
  for (uint64_t i = 0; i < kRequests; ++i) want(i * 100, 10);
  want(0, 10);
  want((kRequests - 1) * 100, 10);  // recorded, so not sent again
  want(5, 1'000'000);
  ASSERT_TRUE(eventually_wanted(kRequests + 2));
  const Wants sent = wants();
  ASSERT_EQ(sent.size(), kRequests + 2);
  EXPECT_EQ(sent[kRequests], (std::pair<uint64_t, uint64_t>{0, 10}));
  EXPECT_EQ(sent.back(), (std::pair<uint64_t, uint64_t>{5, 1'000'000}));
}

}  // namespace
}  // namespace ppmr
