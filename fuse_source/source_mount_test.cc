// What happens while a source mount ends, and while its files are opened, closed and sealed at
// once; without the mount itself.
#include "fuse_source/source_mount.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "rdma_stream/session/receiver.h"
#include "tests/stream/memory_sink.h"

namespace ppmr {
namespace {

SourceOptions options_for(const Receiver& target) {
  SourceOptions options;
  options.target_address = target.address();
  options.chunk_size_bytes = size_t{64} << 10;
  options.pool_size_bytes = 2 * options.chunk_size_bytes;
  options.transport.mode = TransportMode::kTcp;
  options.sender.stream_count = 1;
  return options;
}

// The session's thread calls the mount for each of these; none may find it half gone. (It is
// ThreadSanitizer that notices.)
TEST(SourceMount, EndsWhileItsTargetAsks) {
  MemorySink sink;
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  std::atomic<bool> done = false;
  std::atomic<uint64_t> asked = 0;
  std::thread asking([&] {
    while (!done) {
      for (const SessionReport& session : target.sessions()) {
        const NodeKey nothing_of_its{session.id, 1'000'000};
        if (target.request_seal(nothing_of_its)) ++asked;
        target.tell_removed(nothing_of_its);
      }
      // No faster than a source reads: what it has not acknowledged is kept, up to a limit.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 30; ++i) {
    const uint64_t asked_before = asked;
    auto mount = SourceMount::create(options_for(target));
    EXPECT_TRUE(mount) << mount.error().message;
    for (int looks = 0; looks < 5000 && asked < asked_before + 20; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(asked, asked_before + 20);
  }
  done = true;
  asking.join();
}

// Says that chunks have arrived only when it is asked to, and remembers what it was told of files.
class SlowOutlet final : public DiscardOutlet {
 public:
  void announce(Chunk chunk) override {
    std::lock_guard lock(mutex_);
    chunks_.push_back(std::move(chunk));
  }
  Status send(const wire::OpenedForWrite&) override {
    ++opened;
    return {};
  }
  Status send(const wire::SetAttributes&) override {
    if (before_close) before_close();
    return {};
  }
  Status send(const wire::Closed& message) override {
    closed.push_back(message.size_bytes);
    size_bytes = message.size_bytes;
    return {};
  }
  Status send(const wire::Truncate& message) override {
    size_bytes = message.size_bytes;
    return {};
  }
  Status status() const override {
    return has_failed ? Status(failure(EIO, "the session has failed")) : Status{};
  }
  void all_arrive() {
    std::lock_guard lock(mutex_);
    for (Chunk& chunk : chunks_) chunk.file->verified(chunk.turn, 0);
    chunks_.clear();
  }

  std::atomic<int> opened = 0;
  std::vector<uint64_t> closed;
  std::atomic<uint64_t> size_bytes = 0;  // as told last
  std::function<void()> before_close;    // a close tells the attributes first
  std::atomic<bool> has_failed = false;

 private:
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

class SourceFile : public testing::Test {
 protected:
  static constexpr size_t kChunk = size_t{64} << 10;

  void SetUp() override {
    SourceOptions options;
    options.discard = true;
    options.chunk_size_bytes = kChunk;
    options.pool_size_bytes = 4 * kChunk;
    mount_ = std::move(SourceMount::create(options).value());
    pool_ = std::move(BufferPool::create(4 * kChunk, kChunk).value());
    node_->type = wire::NodeType::kFile;
    node_->checkpoint = std::make_shared<SourceCheckpoint>();
    node_->checkpoint->outlet = outlet_;
    node_->writer = std::make_shared<FileWriter>(7, node_->checkpoint->error, outlet_);
  }
  void write_chunk(uint64_t offset) {
    SlotLease lease = pool_->try_acquire();
    const std::span<const std::byte> bytes = lease.payload();
    CutChunks cut;
    node_->writer->adopt(std::move(lease), bytes, offset, cut);
    cut.announce(*outlet_);
  }
  void await_closing() {
    for (bool closing = false; !closing;) {
      std::this_thread::yield();
      std::lock_guard lock(mount_->tree().mutex());
      closing = node_->closing_writers > 0;
    }
  }

  std::unique_ptr<SourceMount> mount_;
  std::unique_ptr<BufferPool> pool_;
  std::shared_ptr<SlowOutlet> outlet_ = std::make_shared<SlowOutlet>();
  SourceNodePointer node_ = std::make_shared<SourceNode>();
};

// A reader at the target would take what is still to come for a hole.
TEST_F(SourceFile, IsNotToldToBeClosedWhenItWasOpenedAgainMeanwhile) {
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(0);
  std::thread closing([this] { mount_->released(node_, true); });
  await_closing();
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(kChunk);
  outlet_->all_arrive();
  closing.join();
  EXPECT_TRUE(outlet_->closed.empty());
  EXPECT_EQ(outlet_->opened, 2);
  mount_->released(node_, true);
  EXPECT_EQ(outlet_->closed, std::vector<uint64_t>{2 * kChunk});
}

TEST_F(SourceFile, KeepsItsSizeWhenItWasSealedBeforeATruncateCameToIt) {
  write_chunk(0);
  Status truncated;
  std::atomic<bool> waits_for_chunk = false;
  std::thread truncating([&] {
    truncated = mount_->truncate(node_, 10, [&] {
      waits_for_chunk = true;
      return false;
    });
  });
  while (!waits_for_chunk) std::this_thread::yield();
  {
    std::lock_guard lock(mount_->tree().mutex());
    node_->checkpoint->state = CheckpointState::kSealed;
  }
  outlet_->all_arrive();
  truncating.join();
  ASSERT_FALSE(truncated);
  EXPECT_EQ(truncated.error().errno_value, EROFS);
  EXPECT_EQ(node_->writer->size_bytes(), kChunk);
}

// close() has returned long before the mount hears of it.
TEST_F(SourceFile, IsAsLongAsATruncateRightBehindItsCloseMadeIt) {
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(0);
  outlet_->all_arrive();
  std::future<Status> truncated;
  outlet_->before_close = [&] {
    truncated = std::async(std::launch::async,
                           [&] { return mount_->truncate(node_, 10, [] { return false; }); });
    truncated.wait_for(std::chrono::milliseconds(100));  // as far as it comes
  };
  mount_->released(node_, true);
  ASSERT_TRUE(truncated.get());
  EXPECT_EQ(outlet_->closed.size(), 1u);
  EXPECT_EQ(outlet_->size_bytes, 10u);
}

TEST_F(SourceFile, ThatCouldNotBeOpenedIsNotOpen) {
  outlet_->has_failed = true;
  EXPECT_EQ(mount_->opened(node_, true).error().errno_value, EIO);
  EXPECT_EQ(node_->open_handles, 0u);
  EXPECT_EQ(node_->open_writers, 0u);
}

}  // namespace
}  // namespace ppmr
