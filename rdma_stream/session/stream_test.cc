// Tests both halves of the stream together, over a perfect network in this process and over TCP.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <new>
#include <thread>

#include "rdma_stream/connection/tcp_connection.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kChunk = kChunkSizeMinBytes;
constexpr milliseconds kShortTimeout{500};

std::vector<std::byte> bytes_of(uint8_t value, size_t length) {
  return std::vector<std::byte>(length, std::byte{value});
}

// The parameter selects the network: false is the network in this process, true is TCP.
class Stream : public testing::TestWithParam<bool> {
 protected:
  StreamRig& rig(RigOptions options = {}) {
    options.tcp = GetParam();
    rig_ = std::make_unique<StreamRig>(std::move(options));
    return *rig_;
  }
  void TearDown() override {
    if (!rig_) return;
    rig_->end_receiver();
    EXPECT_EQ(rig_->sink().violations(), std::vector<std::string>{});
    EXPECT_EQ(rig_->sink().open_sessions(), 0u);
    EXPECT_EQ(rig_->sink().chunks_in_flight(), 0u);
  }

  std::mt19937_64 random_{1};
  std::unique_ptr<StreamRig> rig_;
};

INSTANTIATE_TEST_SUITE_P(Over, Stream, testing::Bool(),
                         [](auto& info) { return info.param ? "Tcp" : "Memory"; });

TEST_P(Stream, DeliversBytesOfAnyLength) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  for (size_t length : {size_t{1}, kChunk - 1, kChunk, kChunk + 1, 20 * kChunk + 17}) {
    TestFile& file = **source.make_file("file-" + std::to_string(length));
    ASSERT_TRUE(source.write(file, 0, length, random_));
    ASSERT_TRUE(source.drain(file));
    // Drained means that the target has verified the bytes.
    EXPECT_EQ(rig_->sink().content(file.node), file.model);
  }
  ASSERT_TRUE(source.make_file("empty"));
  auto sealed = source.seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_TRUE(rig_->sink().sealed(source.checkpoint()));
  const OutletCounters counters = source.sender().counters();
  EXPECT_EQ(counters.verified_bytes, counters.announced_bytes);
  EXPECT_EQ(counters.peer_name, "target");
  EXPECT_GT(counters.inline_chunks, 0u);
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

TEST_P(Stream, LaterBytesWinWhereWritesOverlap) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  for (int round = 0; round < 100; ++round) {
    // Random lengths give inline chunks and pulled chunks.
    ASSERT_TRUE(source.write(file, random_() % 5000, 1 + random_() % 60'000, random_));
    ASSERT_TRUE(source.write(file, random_() % 5000, 1 + random_() % 3000, random_));
  }
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().content(file.node), file.model);
}

TEST_P(Stream, WorksWithAPoolOfOneSlot) {
  rig();
  TestSource source(*rig_, {.pool_slots = 1, .stream_count = 1});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 50 * kChunk, random_));
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(source.pool().counters().in_use_max, 1u);
}

TEST_P(Stream, FileNamesReachTheTargetInOrderOfCreation) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  std::vector<std::string> names = {"checkpoint"};
  for (int i = 0; i < 500; ++i) {
    names.push_back("file-" + std::to_string(i));
    ASSERT_TRUE(source.make_file(names.back()));
  }
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().names_made(), names);
}

TEST_P(Stream, FilesOfTwoSourcesStaySeparate) {
  rig();
  TestSource one(*rig_, {.name = "one"}), two(*rig_, {.name = "two"});
  ASSERT_TRUE(one.claim("first"));
  ASSERT_TRUE(two.claim("second"));
  std::thread writer([&] {
    std::mt19937_64 random(2);
    TestFile& file = **two.make_file("file");
    EXPECT_TRUE(two.write(file, 0, 30 * kChunk, random));
    EXPECT_TRUE(two.seal());
  });
  TestFile& file = **one.make_file("file");
  EXPECT_TRUE(one.write(file, 0, 30 * kChunk, random_));
  EXPECT_TRUE(one.seal());
  writer.join();
  EXPECT_EQ(rig_->receiver().sessions().size(), 2u);
  EXPECT_EQ(rig_->sink().content(file.node), one.files()[0].model);
}

TEST_P(Stream, RefusesACheckpointNameThatAnotherSourceUsesAndContinues) {
  rig();
  TestSource one(*rig_, {}), two(*rig_, {});
  ASSERT_TRUE(one.claim("same"));
  EXPECT_EQ(two.claim("same").error().errno_value, EEXIST);
  EXPECT_TRUE(two.claim("other"));
}

TEST_P(Stream, ReadsBackBytesFromTheTarget) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 300'000, random_));
  ASSERT_TRUE(source.drain(file));
  std::vector<std::byte> bytes(400'000);
  EXPECT_EQ(source.sender().read_back(file.node, 0, bytes, {}).value(), 300'000u);
  bytes.resize(300'000);
  EXPECT_EQ(bytes, file.model);
  EXPECT_EQ(source.sender().read_back(file.node, 299'999, bytes, {}).value(), 1u);
  EXPECT_EQ(source.sender().read_back(file.node, 1'000'000, bytes, {}).value(), 0u);
  EXPECT_EQ(source.sender().read_back(999, 0, bytes, {}).error().errno_value, ENOENT);
}

TEST_P(Stream, ManyReadBacksAndSmallChunksDoNotBlockEachOther) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 1 << 20, random_));
  ASSERT_TRUE(source.drain(file));
  std::vector<std::thread> readers;
  for (int i = 0; i < 48; ++i) {
    readers.emplace_back([&] {
      std::vector<std::byte> bytes(1 << 20);
      EXPECT_EQ(source.sender().read_back(file.node, 0, bytes, {}).value_or(0), bytes.size());
    });
  }
  TestFile& small = **source.make_file("small");
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(source.write(small, i * 16'000, 16'000, random_));
  EXPECT_TRUE(source.drain(small));
  for (auto& reader : readers) reader.join();
}

TEST_P(Stream, FullTargetFailsTheCheckpointWithEnospc) {
  RigOptions options;
  options.sink.capacity_bytes = 3 * kChunk;
  rig(options);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  (void)source.write(file, 0, 8 * kChunk, random_);
  const Status drained = source.drain(file);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, ENOSPC);
  EXPECT_NE(drained.error().message.find("--memory-limit"), std::string::npos);
  EXPECT_TRUE(source.sender().status()) << "the session continues";
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

TEST_P(Stream, WriterWaitsForSpaceThatWillBeFreed) {
  RigOptions options;
  options.sink = {.capacity_bytes = 2 * kChunk, .wait_for_space = true};
  rig(options);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  TestFile& small = **source.make_file("small");
  std::thread writer([&] {
    std::mt19937_64 random(3);
    EXPECT_TRUE(source.write(file, 0, 12 * kChunk, random));
    EXPECT_TRUE(source.write(small, 0, 100, random));
  });
  ASSERT_TRUE(eventually([&] {
    return source.pool().counters().free == 0 && rig_->receiver().sessions()[0].waits_for_space > 0;
  }));
  EXPECT_LE(source.sender().counters().verified_bytes, 2 * kChunk);
  for (uint64_t chunks = 3; chunks < 16; ++chunks) {
    rig_->sink().raise_capacity(chunks * kChunk);
    rig_->receiver().space_freed();
  }
  writer.join();
  EXPECT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().content(file.node), file.model);
  EXPECT_EQ(rig_->sink().content(small.node), small.model);
}

TEST_P(Stream, ChunkThatWaitsForMemoryDoesNotDelayOtherFiles) {
  RigOptions options;
  options.sink = {.capacity_bytes = 2 * kChunk, .wait_for_space = true};
  rig(options);
  TestSource source(*rig_, {.stream_count = 1});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& large = **source.make_file("large");
  TestFile& fits = **source.make_file("fits");
  const auto bytes = bytes_of(7, kChunk);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(source.write(large, i * kChunk, bytes));
  ASSERT_TRUE(eventually([&] { return rig_->receiver().sessions()[0].waits_for_space > 0; }));
  rig_->sink().raise_capacity(2 * kChunk + 20'000);         // too little for the starved chunk
  ASSERT_TRUE(source.write(fits, 0, bytes_of(8, 18'000)));  // too long for an inline chunk
  EXPECT_TRUE(eventually([&] { return rig_->sink().content(fits.node) == fits.model; },
                         milliseconds(3000)));
  rig_->sink().raise_capacity(1 << 30);
  rig_->receiver().space_freed();
  EXPECT_TRUE(source.seal());
}

TEST_P(Stream, LaterBytesOfAFileDoNotTakeMemoryThatEarlierBytesWaitFor) {
  RigOptions options;
  options.sink = {.capacity_bytes = 2 * kChunk, .wait_for_space = true};
  rig(options);
  // With two movers, memory could be reserved in the wrong order.
  TestSource source(*rig_, {.stream_count = 1});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  TestFile& other = **source.make_file("other");
  const auto bytes = bytes_of(7, kChunk);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(source.write(file, i * kChunk, bytes));
  ASSERT_TRUE(eventually([&] { return rig_->receiver().sessions()[0].waits_for_space > 0; }));
  rig_->sink().raise_capacity(2 * kChunk + 20'000);
  ASSERT_TRUE(source.write(file, 3 * kChunk, bytes_of(8, 18'000)));
  ASSERT_TRUE(source.write(file, 4 * kChunk, bytes_of(9, 100)));  // an inline chunk
  // Chunks of equal urgency are pulled in order. So after this chunk the mover has pulled the
  // chunks of `file`.
  ASSERT_TRUE(source.write(other, 0, bytes_of(1, 18'000)));
  ASSERT_TRUE(source.drain(other));
  EXPECT_EQ(rig_->sink().content(file.node)->size(), 2 * kChunk);
  rig_->sink().raise_capacity(1 << 30);
  rig_->receiver().space_freed();
  EXPECT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().content(file.node), file.model);
}

TEST_P(Stream, IdleSessionStaysConnected) {
  RigOptions options;
  options.peer_timeout = milliseconds(1000);
  rig(options);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  EXPECT_FALSE(eventually([&] { return !source.sender().status(); }, milliseconds(1500)));
  EXPECT_EQ(source.sender().counters().reconnections, 0u) << "heartbeats break the connection";
  EXPECT_LT(source.sender().counters().silence, milliseconds(1000));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 3 * kChunk, random_));
  EXPECT_TRUE(source.seal());
}

// Blocks for longer than the peer timeout, unless `ended` becomes true.
std::function<void()> slow_call(std::function<bool()> ended) {
  return [ended = std::move(ended), calls = std::make_shared<std::atomic<int>>(0)] {
    if (++*calls == 1) eventually(ended, 3 * kShortTimeout);
  };
}

TEST_P(Stream, SlowLandingOfAChunkDoesNotEndTheSession) {
  RigOptions options;
  options.peer_timeout = kShortTimeout;
  rig(options);
  TestSource source(*rig_, {});
  rig_->sink().set_before_land(slow_call([&] { return !source.sender().status(); }));
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 16 * kChunk, random_));
  EXPECT_TRUE(source.seal());
}

// An example of a slow handler is the removal of a checkpoint with large spill files.
TEST_P(Stream, SlowMessageHandlerAtTheTargetDoesNotEndTheSession) {
  RigOptions options;
  options.peer_timeout = kShortTimeout;
  rig(options);
  TestSource source(*rig_, {});
  rig_->sink().set_before_make(slow_call([&] { return !source.sender().status(); }));
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 16 * kChunk, random_));
  const Status sealed = source.seal();
  EXPECT_TRUE(sealed) << sealed.error().message;
}

TEST_P(Stream, SlowEventHandlerAtTheSourceDoesNotEndTheSession) {
  RigOptions options;
  options.peer_timeout = kShortTimeout;
  rig(options);
  Sender* sender = nullptr;
  std::promise<void> slow_event_done;
  TestSourceOptions source_options;
  source_options.events.seal_requested = [&](uint64_t) {
    slow_call([&] { return !sender->status(); })();
    // Reconnects, which makes the source check the silence.
    if (!GetParam()) rig_->network().cut_all();
    slow_event_done.set_value();
  };
  TestSource source(*rig_, source_options);
  sender = &source.sender();
  ASSERT_TRUE(source.claim("checkpoint"));
  ASSERT_TRUE(
      rig_->receiver().request_seal({rig_->receiver().sessions()[0].id, source.checkpoint()}));
  slow_event_done.get_future().wait();
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 3 * kChunk, random_));
  const Status sealed = source.seal();
  EXPECT_TRUE(sealed) << sealed.error().message;
}

// A sink that throws, for example because memory is short.
class ThrowingSink : public Stream {
 protected:
  void expect_failed_session(const std::string& reason) {
    TestSource source(*rig_, {});
    ASSERT_TRUE(source.claim("fails"));
    auto file = source.make_file("file");
    if (file) (void)source.write(**file, 0, 3 * kChunk, random_);
    const Status sealed = source.seal();
    ASSERT_FALSE(sealed);
    EXPECT_EQ(sealed.error().errno_value, EIO);
    EXPECT_TRUE(eventually([&] { return rig_->sink().open_sessions() == 0; }));
    EXPECT_NE(rig_->sink().end_reason().find(reason), std::string::npos)
        << rig_->sink().end_reason();
  }
  void expect_good_session() {
    rig_->sink().set_before_land(nullptr);
    rig_->sink().set_before_make(nullptr);
    TestSource source(*rig_, {});
    ASSERT_TRUE(source.claim("succeeds"));
    TestFile& file = **source.make_file("file");
    ASSERT_TRUE(source.write(file, 0, 3 * kChunk, random_));
    EXPECT_TRUE(source.seal());
  }
  void TearDown() override { rig_->end_receiver(); }
};

INSTANTIATE_TEST_SUITE_P(Over, ThrowingSink, testing::Bool(),
                         [](auto& info) { return info.param ? "Tcp" : "Memory"; });

TEST_P(ThrowingSink, ExceptionWhileAChunkLandsFailsOnlyThatSession) {
  rig().sink().set_before_land([] { throw std::bad_alloc(); });
  expect_failed_session("cannot store a chunk");
  expect_good_session();
}

TEST_P(ThrowingSink, ExceptionWhileAMessageIsHandledFailsOnlyThatSession) {
  rig().sink().set_before_make([] { throw std::bad_alloc(); });
  expect_failed_session("cannot handle message");
  expect_good_session();
}

TEST_P(Stream, RequestsOfTheTargetReachTheSource) {
  rig();
  std::atomic<uint64_t> asked = 0, removed = 0;
  TestSourceOptions options;
  options.events.seal_requested = [&](uint64_t checkpoint) { asked = checkpoint; };
  options.events.checkpoint_removed = [&](uint64_t checkpoint) { removed = checkpoint; };
  TestSource source(*rig_, options);
  ASSERT_TRUE(source.claim("checkpoint"));
  const NodeKey key{rig_->receiver().sessions()[0].id, source.checkpoint()};
  EXPECT_TRUE(rig_->receiver().request_seal(key));
  rig_->receiver().notify_removed(key);
  EXPECT_TRUE(eventually([&] { return asked == source.checkpoint(); }));
  EXPECT_TRUE(eventually([&] { return removed == source.checkpoint(); }));
  EXPECT_TRUE(eventually([&] { return source.sender().space().total_bytes > 0; }));
  EXPECT_EQ(rig_->receiver().request_seal({99, 1}).error().errno_value, ENOTCONN);
}

TEST_P(Stream, ClosingASourceEndsItsSessionAtOnce) {
  RigOptions options;
  options.peer_timeout = milliseconds(60'000);
  rig(options);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  source.close_sender();
  EXPECT_TRUE(eventually([&] { return rig_->sink().open_sessions() == 0; }, milliseconds(5000)));
  EXPECT_NE(rig_->sink().end_reason().find("ended"), std::string::npos);
}

TEST_P(Stream, WritesFailAndAllSlotsAreFreedWhenTheTargetEnds) {
  RigOptions options;
  options.peer_timeout = milliseconds(400);
  rig(options);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  std::thread writer([&] {
    std::mt19937_64 random(4);
    Status status;
    while (status) status = source.write(file, 0, 10 * kChunk, random);
    EXPECT_EQ(status.error().errno_value, EIO);
  });
  EXPECT_TRUE(eventually([&] { return source.sender().counters().verified_bytes > 0; }));
  rig_->end_receiver();
  const auto begin = Clock::now();
  writer.join();
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  const Status drained = source.drain(file);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, EIO);
  EXPECT_EQ(source.sender().status().error().errno_value, EIO);
  EXPECT_EQ(source.claim("again").error().errno_value, EIO);
  EXPECT_EQ(source.sender().send(wire::Forget{1}).error().errno_value, EIO);
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

TEST(StreamOverTcp, SessionsLeakNoDescriptorOrThread) {
  const auto descriptors = [] {
    const auto fds = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(fds), end(fds));
  };
  std::thread([] {}).join();  // when the first thread starts, a sanitizer starts another one
  const auto fds_before = descriptors();
  const size_t threads_before = threads_of_this_process();
  for (int round = 0; round < 5; ++round) {
    RigOptions options;
    options.tcp = true;
    StreamRig rig(options);
    TestSource source(rig, {});
    std::mt19937_64 random(1);
    ASSERT_TRUE(source.claim("checkpoint"));
    TestFile& file = **source.make_file("file");
    ASSERT_TRUE(source.write(file, 0, 5 * kChunk, random));
    ASSERT_TRUE(source.seal());
  }
  EXPECT_EQ(descriptors(), fds_before);
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() == threads_before; }));
}

TEST(DiscardOutlet, AcceptsAllChunksAndRefusesToSeal) {
  auto pool = std::move(BufferPool::create(4 * kChunk, kChunk).value());
  DiscardOutlet outlet;
  const auto file = std::make_shared<FileStream>(1, std::make_shared<StickyError>());
  for (int i = 0; i < 10; ++i) outlet.announce(file->cut(pool->try_acquire(), 0, 100, i * 100));
  EXPECT_TRUE(file->drain(nullptr));
  EXPECT_EQ(pool->counters().free, 4u);
  EXPECT_EQ(outlet.counters().verified_bytes, 1000u);
  EXPECT_FALSE(outlet.seal({}));
}

}  // namespace
}  // namespace ppmr
