// Tests a source mount that ends while its target sends requests; files that are opened, closed,
// removed and sealed concurrently; and blocked writers. Without FUSE.
#include "fuse_source/source_mount.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
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

// The session's thread calls the mount for each request. No call may reach a mount that is partly
// destroyed. (ThreadSanitizer detects this.)
TEST(SourceMount, CanBeDestroyedWhileTheTargetSendsRequests) {
  MemorySink sink;
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  std::atomic<bool> done = false;
  std::atomic<uint64_t> requests = 0;
  std::thread requesting([&] {
    while (!done) {
      for (const SessionReport& session : target.sessions()) {
        const NodeKey unknown_node{session.id, 1'000'000};
        if (target.request_seal(unknown_node)) ++requests;
        target.notify_removed(unknown_node);
      }
      // Sends no faster than the source reads, because the channel limits unacknowledged messages.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 30; ++i) {
    const uint64_t requests_before = requests;
    auto mount = SourceMount::create(options_for(target));
    EXPECT_TRUE(mount) << mount.error().message;
    for (int looks = 0; looks < 5000 && requests < requests_before + 20; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(requests, requests_before + 20);
  }
  done = true;
  requesting.join();
}

bool becomes(const std::function<bool()>& wanted) {
  for (int looks = 0; looks < 20'000; ++looks) {
    if (wanted()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// No checkpoint begins here: the source connects because its target is there again.
TEST(SourceMount, ConnectsAtRestToATargetThatHasStartedAgain) {
  MemorySink first_sink;
  auto first = std::make_unique<Receiver>(
      ReceiverOptions{}, std::move(Security::none()->listener("127.0.0.1:0").value()), first_sink);
  SourceOptions options = options_for(*first);
  options.sender.peer_timeout = std::chrono::milliseconds(1000);
  options.reconnect_interval = std::chrono::milliseconds(20);
  const std::string address = first->address();
  auto mount = std::move(SourceMount::create(options).value());
  const auto is_connected = [&] {
    PassedDescriptors none;
    const auto status = mount->answer(to_request(request::Status{}), none);
    return status.at("peers").at(0).at("connected").get<bool>();
  };
  ASSERT_TRUE(becomes(is_connected));
  first.reset();
  ASSERT_TRUE(becomes([&] { return !is_connected(); }));
  MemorySink second_sink;
  Receiver second({}, std::move(Security::none()->listener(address).value()), second_sink);
  EXPECT_TRUE(becomes(is_connected));
  EXPECT_EQ(second.sessions().size(), 1u);
}

// The root is a node without a checkpoint.
TEST(SourceMount, IgnoresRequestsForDirectoriesThatAreNotCheckpoints) {
  MemorySink sink;
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  auto mount = std::move(SourceMount::create(options_for(target)).value());
  const auto directory = wire::NodeType::kDirectory;
  const auto top = mount->make(kSourceRoot, "top", directory, {}, "").value();
  const auto inner = mount->make(top->id, "inner", directory, {}, "").value();
  const SessionId session = target.sessions().front().id;
  for (const uint64_t node : {kSourceRoot, inner->id}) {
    ASSERT_TRUE(target.request_seal({session, node}));
    target.notify_removed({session, node});
  }
  // The session serves requests in order, so the next requests show that the mount has survived the
  // earlier ones.
  ASSERT_TRUE(target.request_seal({session, top->id}));
  while (!sink.sealed(top->id)) std::this_thread::yield();
  EXPECT_FALSE(top->checkpoint->removed_at_target);
  target.notify_removed({session, top->id});
  while (!top->checkpoint->removed_at_target) std::this_thread::yield();
}

TEST(SourceMount, AddsTheFilesOfABundle) {
  MemorySink sink;
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  auto mount = std::move(SourceMount::create(options_for(target)).value());
  const wire::Attributes owned{.mode = 0700, .uid = 17, .gid = 18};
  const auto top = mount->make(kSourceRoot, "top", wire::NodeType::kDirectory, owned, "").value();
  // Some files are larger than a chunk, and all files together are larger than the pool.
  const std::vector<std::pair<std::string, size_t>> files = {
      {"core-1.img", 500},      {"empty.img", 0},    {"inventory.img", 30},
      {"large.img", 1'000'000}, {"mm-1.img", 65536}, {"zero.img", 1}};
  std::vector<BundleWriter::File> listed;
  for (const auto& [name, size] : files) listed.push_back({name, size, true});
  auto writer = std::move(BundleWriter::create(listed, true).value());
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t at = 0; at < files[i].second; ++at) {
      writer.bytes_of(i)[at] = static_cast<std::byte>(i * 31 + at * 7);
    }
  }
  const auto bundle = std::move(ImageBundle::open(*writer.finish()).value());

  EXPECT_EQ(mount->add_files("none", bundle).error().errno_value, ENOENT);
  const Status added = mount->add_files("top", bundle);
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(mount->add_files("top", bundle).error().errno_value, EEXIST);
  const auto report = mount->commit("top");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->files, files.size());
  uint64_t last = 0;
  for (const auto& [name, size] : files) {
    const SourceNodePointer node = mount->tree().child(top, name);
    ASSERT_TRUE(node) << name;
    EXPECT_EQ(node->attributes.mode, 0600u);
    EXPECT_EQ(node->attributes.uid, 17u);
    const auto bytes = *bundle.find(name);
    EXPECT_EQ(sink.content(node->id), std::vector<std::byte>(bytes.begin(), bytes.end())) << name;
    last = std::max(last, node->id);
  }
  EXPECT_EQ(mount->tree().child(top, "inventory.img")->id, last) << "it must be the last";
}

// Announces chunks and reports them as verified only on request, and records the messages about
// files.
class SlowOutlet final : public DiscardOutlet {
 public:
  void announce(Chunk chunk) override {
    if (announces) {
      const std::shared_ptr<FileStream> file = chunk.file;
      file->announce_in_turn(std::move(chunk), {}, [this](Chunk next, const wire::ChunkCheck&) {
        keep(std::move(next));
      });
    } else {
      keep(std::move(chunk));
    }
  }
  void keep(Chunk chunk) {
    std::lock_guard lock(mutex_);
    chunks_.push_back(std::move(chunk));
  }
  Status send(const OneWayMessage& message) override {
    if (std::holds_alternative<wire::OpenedForWrite>(message)) ++opened;
    if (const auto* close = std::get_if<wire::Closed>(&message)) {
      if (before_close) before_close();
      closed.push_back(close->size_bytes);
      ++closed_count;
      size_bytes = close->size_bytes;
    }
    if (std::holds_alternative<wire::Forget>(message)) ++forgotten;
    if (const auto* truncate = std::get_if<wire::Truncate>(&message)) {
      size_bytes = truncate->size_bytes;
    }
    return {};
  }
  Status await_applied(uint64_t, const Interrupted&) override {
    ++waits_for_target;
    return {};
  }
  Status status() const override {
    return has_failed ? Status(failure(EIO, "the session has failed")) : Status{};
  }
  void all_arrive() {
    while (one_arrives()) {
    }
  }
  // Returns false if no chunk is in flight.
  bool one_arrives() {
    Chunk chunk;
    {
      std::lock_guard lock(mutex_);
      if (chunks_.empty()) return false;
      chunk = std::move(chunks_.front());
      chunks_.pop_front();
    }
    chunk.lease.release();
    chunk.file->verified(chunk.turn, 0);
    return true;
  }

  bool announces = false;  // chunks count as verified at once
  std::atomic<int> opened = 0;
  std::vector<uint64_t> closed;
  std::atomic<int> closed_count = 0;
  std::atomic<int> waits_for_target = 0;
  std::atomic<int> forgotten = 0;
  std::atomic<uint64_t> size_bytes = 0;  // the size in the last message
  std::function<void()> before_close;
  std::atomic<bool> has_failed = false;

 private:
  std::mutex mutex_;
  std::deque<Chunk> chunks_;
};

class SourceFile : public testing::Test {
 protected:
  static constexpr size_t kChunk = size_t{64} << 10;
  static constexpr std::chrono::milliseconds kPeerTimeout{1000};

  void SetUp() override {
    SourceOptions options;
    options.discard = true;
    options.chunk_size_bytes = kChunk;
    options.pool_size_bytes = 4 * kChunk;
    options.sender.peer_timeout = kPeerTimeout;
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

// After a close message, a reader at the target would treat the bytes that are not written yet as a
// hole.
TEST_F(SourceFile, SendsNoCloseMessageIfReopenedBeforeTheCloseIsComplete) {
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

// The target has the announcements of the bytes, so its readers wait for the bytes.
TEST_F(SourceFile, CloseDoesNotWaitForBytesInFlight) {
  outlet_->announces = true;
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(0);
  mount_->released(node_, true);
  EXPECT_EQ(outlet_->closed, std::vector<uint64_t>{kChunk});
  EXPECT_TRUE(outlet_->one_arrives()) << "the bytes were still in flight";
}

// If the message were sent earlier, the target would get bytes of a file that it has forgotten.
TEST_F(SourceFile, RemovedFileIsForgottenWhenItsBytesHaveArrived) {
  outlet_->announces = true;
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(0);
  node_->linked = false;
  auto released = std::async(std::launch::async, [this] { mount_->released(node_, true); });
  while (outlet_->closed_count == 0) std::this_thread::yield();
  EXPECT_EQ(outlet_->forgotten, 0);
  outlet_->all_arrive();
  released.get();
  EXPECT_EQ(outlet_->forgotten, 1);
}

TEST_F(SourceFile, KeepsSizeWhenSealedDuringTruncate) {
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

// fsync(2) returns when a reader at the target sees what the writer has done.
TEST_F(SourceFile, FsyncWaitsUntilTargetHasAppliedTruncationsAndHoles) {
  const Interrupted never = [] { return false; };
  write_chunk(0);
  outlet_->all_arrive();
  ASSERT_TRUE(mount_->drain(node_, never));
  EXPECT_EQ(outlet_->waits_for_target, 0);
  ASSERT_TRUE(mount_->punch_hole(node_, 0, 10, never));
  ASSERT_TRUE(mount_->drain(node_, never));
  EXPECT_EQ(outlet_->waits_for_target, 1);
  ASSERT_TRUE(mount_->truncate(node_, 20, never));
  ASSERT_TRUE(mount_->drain(node_, never));
  EXPECT_EQ(outlet_->waits_for_target, 2);
  ASSERT_TRUE(mount_->drain(node_, never));
  EXPECT_EQ(outlet_->waits_for_target, 2);
}

// close(2) returns before the kernel sends the release of the file.
TEST_F(SourceFile, TruncateDirectlyAfterCloseDeterminesTheFinalSize) {
  ASSERT_TRUE(mount_->opened(node_, true));
  write_chunk(0);
  outlet_->all_arrive();
  std::future<Status> truncated;
  outlet_->before_close = [&] {
    truncated = std::async(std::launch::async,
                           [&] { return mount_->truncate(node_, 10, [] { return false; }); });
    truncated.wait_for(std::chrono::milliseconds(100));  // long enough for the call to block
  };
  mount_->released(node_, true);
  ASSERT_TRUE(truncated.get());
  EXPECT_EQ(outlet_->closed.size(), 1u);
  EXPECT_EQ(outlet_->size_bytes, 10u);
}

TEST_F(SourceFile, IsNotOpenAfterFailedOpen) {
  outlet_->has_failed = true;
  EXPECT_EQ(mount_->opened(node_, true).error().errno_value, EIO);
  EXPECT_EQ(node_->open_handles, 0u);
  EXPECT_EQ(node_->open_writers, 0u);
}

// A file in the tree, with messages to outlet_.
class SourceTreeFile : public SourceFile {
 protected:
  void SetUp() override {
    SourceFile::SetUp();
    top_ = mount_->make(kSourceRoot, "top", wire::NodeType::kDirectory, {}, "").value();
    top_->checkpoint->outlet = outlet_;
  }
  SourceNodePointer make_file(const std::string& name) {
    return mount_->make(top_->id, name, wire::NodeType::kFile, {}, "").value();
  }
  Result<size_t> write(const SourceNodePointer& file, size_t bytes, uint64_t offset) {
    const std::vector<std::byte> data(bytes);
    CutChunks cut;
    auto written = mount_->write(
        file, data, offset, [] { return false; }, cut);
    cut.announce(*outlet_);
    return written;
  }

  SourceNodePointer top_;
};

TEST_F(SourceTreeFile, CloseDuringUnlinkSendsOnlyOneForgetToTheTarget) {
  constexpr int kFiles = 3000;
  std::atomic<int> started = 0;
  std::vector<SourceNodePointer> files;
  for (int i = 0; i < kFiles; ++i) {
    files.push_back(make_file(std::to_string(i)));
    ASSERT_TRUE(mount_->opened(files.back(), false));
  }
  std::thread closing([&] {
    for (int i = 0; i < kFiles; ++i) {
      while (started <= i) {
      }
      mount_->released(files[i], false);
    }
  });
  for (int i = 0; i < kFiles; ++i) {
    ++started;
    ASSERT_TRUE(mount_->remove(top_->id, std::to_string(i), false));
  }
  closing.join();
  EXPECT_EQ(outlet_->forgotten, kFiles);
}

// The kernel queues FORGET and RELEASE separately.
TEST_F(SourceTreeFile, RemovedFileStaysUntilReleaseWhenTheKernelSendsForgetFirst) {
  const auto file = make_file("file");
  mount_->tree().view_for_lookup(file);
  ASSERT_TRUE(mount_->opened(file, false));
  ASSERT_TRUE(mount_->remove(top_->id, "file", false));
  mount_->forget(file->id, 1);
  ASSERT_TRUE(mount_->tree().find(file->id)) << "the release would find no node";
  EXPECT_EQ(outlet_->forgotten, 0);
  mount_->released(file, false);
  EXPECT_EQ(outlet_->forgotten, 1);
  EXPECT_FALSE(mount_->tree().find(file->id));
}

TEST_F(SourceTreeFile, CannotBeOpenedAfterTheTargetHasForgottenTheFile) {
  const auto file = make_file("file");
  ASSERT_TRUE(mount_->remove(top_->id, "file", false));
  EXPECT_EQ(outlet_->forgotten, 1);
  EXPECT_EQ(mount_->opened(file, false).error().errno_value, ESTALE);
}

// The link releases one slot per quarter of the peer timeout, so the last writer waits for three
// peer timeouts.
TEST_F(SourceTreeFile, BlockedWriterSucceedsWhileOtherWritersGetSlots) {
  constexpr size_t kWriters = 16;
  std::vector<std::future<Result<size_t>>> writes;
  for (size_t i = 0; i < kWriters; ++i) {
    writes.push_back(std::async(std::launch::async, [this, file = make_file(std::to_string(i))] {
      return write(file, kChunk, 0);
    }));
  }
  std::promise<void> stop;
  std::thread link([this, stopped = stop.get_future()] {
    while (stopped.wait_for(kPeerTimeout / 4) == std::future_status::timeout) {
      outlet_->one_arrives();
    }
  });
  for (auto& write : writes) {
    const auto written = write.get();
    EXPECT_EQ(written.value_or(0), kChunk) << written.error().message;
  }
  stop.set_value();
  link.join();
  outlet_->all_arrive();
}

TEST_F(SourceTreeFile, BlockedWriterFailsWhenNoSlotIsReleased) {
  const auto file = make_file("file");
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(write(file, kChunk, i * kChunk));
  const auto written = write(file, kChunk, 4 * kChunk);
  EXPECT_EQ(written.error().errno_value, EIO);
  EXPECT_NE(written.error().message.find("no slot became free for 1000 ms"), std::string::npos);
  outlet_->all_arrive();
}

}  // namespace
}  // namespace ppmr
