// Tests how the memory of a frozen process is sent while readers at the target want parts of it.
// Without FUSE.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <latch>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <ranges>
#include <set>
#include <thread>

#include "fuse_source/source_mount.h"
#include "processes/memory/memory_reader.h"
#include "processes/memory/page_index.h"
#include "rdma_stream/session/receiver.h"
#include "tests/stream/memory_sink.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

constexpr uint64_t kBlock = kWantedBlockBytes;
constexpr size_t kBlocks = 64;
constexpr const char* kName = "memory";

// A process whose memory has different bytes in each block.
class FrozenProcess {
 public:
  FrozenProcess() {
    void* mapped =
        mmap(nullptr, kBlocks * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
    for (size_t i = 0; i < kBlocks; ++i) {
      std::memset(memory_ + i * kBlock, static_cast<int>(i + 1), kBlock);
    }
  }
  ~FrozenProcess() {
    end();
    munmap(memory_, kBlocks * kBlock);
  }
  void clear(uint64_t offset, uint64_t length) { std::memset(memory_ + offset, 0, length); }
  void start() {
    process_ = fork();
    if (process_ == 0) {
      for (;;) pause();
    }
  }
  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(std::exchange(process_, 0), nullptr, 0);
  }
  std::vector<std::byte> bytes() const { return {memory_, memory_ + kBlocks * kBlock}; }
  FrozenMemory frozen(size_t further_readers = 0) const {
    const auto start = reinterpret_cast<uint64_t>(memory_);
    auto reader = MemoryReader::create(
        {kBlocks * kBlock, {{1, process_, {{start, start + kBlocks * kBlock, 0}}}}});
    const auto read = [](std::shared_ptr<MemoryReader> from) {
      return
          [from](uint64_t offset, std::span<std::byte> slot) { return from->read(offset, slot); };
    };
    const auto another = [&]() -> FrozenMemory::Reader {
      return {read(std::make_shared<MemoryReader>(reader->for_another_thread()))};
    };
    FrozenMemory memory{
        .bytes = kBlocks * kBlock, .first = {}, .reader = another(), .wanted_reader = another()};
    for (size_t i = 0; i < further_readers; ++i) memory.further_readers.push_back(another());
    return memory;
  }

 private:
  std::byte* memory_ = nullptr;
  pid_t process_ = 0;
};

// Records the announcements. A chunk is in flight until the test lets it arrive.
class RecordingOutlet final : public DiscardOutlet {
 public:
  void announce(Chunk chunk) override {
    const std::shared_ptr<FileStream> file = chunk.file;
    file->announce_in_turn(std::move(chunk), {}, [&](Chunk next, const wire::ChunkCheck&) {
      const auto payload = next.lease.payload().subspan(next.slot_offset, next.length);
      std::lock_guard lock(mutex_);
      offsets_.push_back(next.offset);
      if (content_.size() < next.offset + payload.size()) {
        content_.resize(next.offset + payload.size());
      }
      for (size_t i = 0; i < payload.size(); ++i) {
        EXPECT_EQ(content_[next.offset + i], std::byte{0}) << "sent twice";
        content_[next.offset + i] = payload[i];
      }
      in_flight_.push_back(std::move(next));
    });
  }
  Status send(const OneWayMessage& message) override {
    if (const auto* zeros = std::get_if<wire::Zeros>(&message)) {
      std::lock_guard lock(mutex_);
      zeros_.push_back(*zeros);
    }
    return {};
  }
  Status seal(wire::Seal) override { return {}; }
  void set_patience(std::chrono::milliseconds patience) override { patience_ = patience; }
  std::chrono::milliseconds patience() const { return patience_; }
  bool one_arrives() {
    Chunk chunk;
    {
      std::lock_guard lock(mutex_);
      if (in_flight_.empty()) return false;
      chunk = std::move(in_flight_.front());
      in_flight_.pop_front();
    }
    chunk.lease.release();
    chunk.file->verified(chunk.turn, 0);
    return true;
  }
  std::vector<uint64_t> offsets() const {
    std::lock_guard lock(mutex_);
    return offsets_;
  }
  std::vector<std::pair<uint64_t, uint64_t>> zeros() const {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const wire::Zeros& zeros : zeros_) ranges.emplace_back(zeros.offset, zeros.length_bytes);
    return ranges;
  }
  std::vector<std::byte> content() const {
    std::lock_guard lock(mutex_);
    return content_;
  }

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<uint64_t> offsets_;  // in the order of the announcements
  std::vector<std::byte> content_;
  std::vector<wire::Zeros> zeros_;
  std::deque<Chunk> in_flight_;
  std::atomic<std::chrono::milliseconds> patience_{};
};

class SourceMemory : public testing::Test {
 protected:
  // The chunks have the size of a block, unless the test chooses another.
  void open(size_t slots = 4, size_t chunk_bytes = kBlock) {
    SourceOptions options;
    options.discard = true;
    options.chunk_size_bytes = chunk_bytes;
    options.pool_size_bytes = slots * chunk_bytes;
    mount_ = std::move(SourceMount::create(options).value());
    node_ = mount_->make(kSourceRoot, kName, wire::NodeType::kFile, {}, "").value();
    node_->checkpoint->outlet = outlet_;
  }
  void begin() {
    process_.start();
    sent_ = std::async(std::launch::async,
                       [this] { return mount_->send_memory(kName, process_.frozen()); });
  }
  // Lets chunks arrive until send_memory() returns.
  Status finish() {
    while (sent_.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout) {
      if (!outlet_->one_arrives()) std::this_thread::yield();
    }
    return sent_.get();
  }
  void want(uint64_t offset, uint64_t length = 1) {
    mount_->bytes_wanted(node_->id, offset, length);
  }
  bool eventually_announced(size_t chunks) {
    return eventually([&] { return outlet_->offsets().size() >= chunks; });
  }
  nlohmann::json answer(const nlohmann::json& request) {
    PassedDescriptors none;
    return mount_->answer(request, none);
  }
  nlohmann::json status() { return answer({{"op", "status"}}); }
  // Returns whether the first pass waits for a free slot.
  bool first_pass_waits() {
    return eventually([this] { return status()["pool"]["waits"] > 0; });
  }
  void expect_whole_memory_once() {
    auto content = outlet_->content();
    content.resize(kBlocks * kBlock);
    EXPECT_TRUE(content == process_.bytes());
  }

  FrozenProcess process_;
  std::shared_ptr<RecordingOutlet> outlet_ = std::make_shared<RecordingOutlet>();
  std::unique_ptr<SourceMount> mount_;
  SourceNodePointer node_;
  std::future<Status> sent_;
};

TEST_F(SourceMemory, WantedBlockDoesNotWaitForTheFullPool) {
  open();
  begin();
  ASSERT_TRUE(eventually_announced(3));
  ASSERT_TRUE(first_pass_waits());
  ASSERT_EQ(outlet_->offsets().size(), 3u) << "one slot is the reserve";
  want(50 * kBlock + 17);
  ASSERT_TRUE(eventually_announced(4));
  EXPECT_EQ(outlet_->offsets()[3], 50 * kBlock);
  EXPECT_EQ(status()["checkpoints"][0]["bytes"], 4 * kBlock) << "not up to the last block";
  const Status sent = finish();
  ASSERT_TRUE(sent) << sent.error().message;
  EXPECT_EQ(outlet_->offsets().size(), kBlocks);
  expect_whole_memory_once();
}

TEST_F(SourceMemory, SlotsThatBecomeFreeServeWantedBlocksFirst) {
  open();
  begin();
  ASSERT_TRUE(eventually_announced(3));
  ASSERT_TRUE(first_pass_waits());
  for (const uint64_t block : {40, 50, 60}) want(block * kBlock);
  ASSERT_TRUE(eventually_announced(4));
  for (const size_t chunks : {5, 6}) {
    outlet_->one_arrives();
    ASSERT_TRUE(eventually_announced(chunks));
  }
  const auto offsets = outlet_->offsets();
  EXPECT_EQ(std::vector<uint64_t>(offsets.begin() + 3, offsets.begin() + 6),
            (std::vector<uint64_t>{40 * kBlock, 50 * kBlock, 60 * kBlock}));
  ASSERT_TRUE(finish());
  expect_whole_memory_once();
}

TEST_F(SourceMemory, ConsecutiveWantedBlocksShareASlot) {
  open(4, 16 * kBlock);
  want(33 * kBlock, 12 * kBlock);
  begin();
  ASSERT_TRUE(eventually_announced(1));
  EXPECT_EQ(outlet_->offsets()[0], 33 * kBlock);
  ASSERT_TRUE(finish());
  EXPECT_EQ(outlet_->offsets().size(), 6u);  // 0, 16, 32, 33, 45, 61
  expect_whole_memory_once();
}

TEST_F(SourceMemory, BytesThatAreWantedBeforeTheyCanBeSentAreSentFirst) {
  open();
  want(63 * kBlock);
  begin();
  ASSERT_TRUE(eventually_announced(1));
  EXPECT_EQ(outlet_->offsets()[0], 63 * kBlock);
  ASSERT_TRUE(finish());
  expect_whole_memory_once();
}

TEST_F(SourceMemory, PartsMarkedAsFirstAreSentFirst) {
  open(4, 16 * kBlock);
  process_.start();
  FrozenMemory memory = process_.frozen();
  memory.first = {{60 * kBlock, 3 * kBlock}, {UINT64_MAX - 1, 5}};
  sent_ = std::async(std::launch::async, [&] { return mount_->send_memory(kName, memory); });
  ASSERT_TRUE(finish());
  EXPECT_EQ(outlet_->offsets()[0], 60 * kBlock);
  expect_whole_memory_once();
}

TEST_F(SourceMemory, FurtherThreadsHelpTheFirstPass) {
  open(8);
  process_.clear(20 * kBlock, 3 * kBlock);
  process_.start();
  FrozenMemory memory = process_.frozen(3);
  // Each thread continues when all of them have blocks to read.
  std::latch all(4);
  const auto meet = [&](FrozenMemory::Reader& reader) {
    reader.read = [&all, read = reader.read, first = true](uint64_t offset,
                                                           std::span<std::byte> slot) mutable {
      if (std::exchange(first, false)) all.arrive_and_wait();
      return read(offset, slot);
    };
  };
  meet(memory.reader);
  for (FrozenMemory::Reader& reader : memory.further_readers) meet(reader);
  sent_ = std::async(std::launch::async, [&] { return mount_->send_memory(kName, memory); });
  const Status sent = finish();
  ASSERT_TRUE(sent) << sent.error().message;
  expect_whole_memory_once();
}

TEST_F(SourceMemory, ErrorOfAFurtherThreadEndsAllPassesAlsoAmongZeros) {
  open(8);
  process_.clear(0, kBlocks * kBlock);
  process_.start();
  FrozenMemory memory = process_.frozen(1);
  memory.further_readers[0].read = [&](uint64_t, std::span<std::byte>) -> Status {
    return failure(ESRCH, "read: the process has ended");
  };
  // Zeros are never announced, so a pass that does not check the checkpoint would read all blocks.
  size_t reads_after = 0;
  memory.reader.read = [&](uint64_t, std::span<std::byte> slot) -> Status {
    std::memset(slot.data(), 0, slot.size());
    while (node_->checkpoint->status()) std::this_thread::yield();
    ++reads_after;
    return {};
  };
  const Status sent = mount_->send_memory(kName, memory);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().errno_value, ESRCH) << sent.error().message;
  EXPECT_LE(reads_after, 1u);
}

// The rounds of a live move are such calls. Readers may want bytes that an earlier call has sent.
TEST_F(SourceMemory, LaterCallIsAppendedAndServesItsWantsFirst) {
  open(4, 16 * kBlock);
  begin();
  ASSERT_TRUE(finish());
  FrozenMemory next = process_.frozen();
  next.file_offset = kBlocks * kBlock;
  want(next.file_offset - kBlock, 2 * kBlock);
  want(next.file_offset + 60 * kBlock, 2 * kBlock);
  const size_t before = outlet_->offsets().size();
  sent_ = std::async(std::launch::async, [&] { return mount_->send_memory(kName, next); });
  ASSERT_TRUE(finish());
  const auto offsets = outlet_->offsets();
  for (size_t i = before; i < offsets.size(); ++i) EXPECT_GE(offsets[i], next.file_offset);
  const std::set<uint64_t> first(offsets.begin() + static_cast<long>(before),
                                 offsets.begin() + static_cast<long>(before) + 2);
  EXPECT_EQ(first, (std::set<uint64_t>{next.file_offset, next.file_offset + 60 * kBlock}));
  const auto once = process_.bytes();
  auto twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_TRUE(outlet_->content() == twice);
}

TEST_F(SourceMemory, BlocksThatWereSentAreNotSentAgain) {
  open();
  begin();
  ASSERT_TRUE(eventually_announced(3));
  want(0, 3 * kBlock);
  want(10 * kBlock);
  ASSERT_TRUE(eventually_announced(4));
  want(10 * kBlock);
  ASSERT_TRUE(finish());
  want(20 * kBlock);  // after the end of the transfer
  EXPECT_EQ(outlet_->offsets().size(), kBlocks);
  expect_whole_memory_once();
}

TEST_F(SourceMemory, RunsOfZeroPagesAreAnnouncedWithOneMessageEach) {
  open(4, 4 * kBlock);
  process_.clear(5 * kBlock, 15 * kBlock);  // the slots 4 to 7 in part, the others whole
  process_.clear(25 * kBlock, kBlock);      // in a slot
  process_.clear(40 * kBlock + kPageBytes, kPageBytes);  // too short to be left out
  process_.clear(60 * kBlock, 4 * kBlock);               // at the end of the file
  begin();
  ASSERT_TRUE(finish());
  EXPECT_EQ(outlet_->zeros(),
            (std::vector<std::pair<uint64_t, uint64_t>>{
                {5 * kBlock, 15 * kBlock}, {25 * kBlock, kBlock}, {60 * kBlock, 4 * kBlock}}));
  expect_whole_memory_once();
}

TEST_F(SourceMemory, WantedZerosAreAnnouncedAheadOfTheRest) {
  open();
  process_.clear(50 * kBlock, 2 * kBlock);
  begin();
  ASSERT_TRUE(eventually_announced(3));
  want(51 * kBlock);
  ASSERT_TRUE(eventually([&] { return !outlet_->zeros().empty(); }));
  EXPECT_EQ(outlet_->zeros()[0], (std::pair<uint64_t, uint64_t>{51 * kBlock, kBlock}));
  want(52 * kBlock);  // possible because the reserve is still there
  ASSERT_TRUE(eventually_announced(4));
  EXPECT_EQ(outlet_->offsets()[3], 52 * kBlock);
  ASSERT_TRUE(finish());
  expect_whole_memory_once();
}

TEST_F(SourceMemory, HostileWantsAreHarmless) {
  open(4, 4 * kBlock);
  std::atomic<bool> done = false;
  std::atomic<int> wants = 0;
  std::thread hostile([&] {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20'000 || !done; ++i) {
      const uint64_t node = random() % 3 == 0 ? random() : node_->id + random() % 2;
      const uint64_t offset = random() % 2 == 0 ? random() : random() % (kBlocks * kBlock);
      mount_->bytes_wanted(node, offset, random() >> random() % 64);
      ++wants;
      if (i > 20'000) std::this_thread::yield();
    }
  });
  EXPECT_TRUE(eventually([&] { return wants > 100; }));
  begin();
  const Status sent = finish();
  done = true;
  hostile.join();
  ASSERT_TRUE(sent) << sent.error().message;
  expect_whole_memory_once();
}

TEST_F(SourceMemory, PoolOfOneSlotHasNoReserveAndServesWantedBlocks) {
  open(1);
  begin();
  ASSERT_TRUE(eventually_announced(1));
  want(50 * kBlock);
  outlet_->one_arrives();
  ASSERT_TRUE(eventually_announced(2));
  outlet_->one_arrives();
  ASSERT_TRUE(eventually_announced(3));
  const auto offsets = outlet_->offsets();
  EXPECT_NE(std::find(offsets.begin(), offsets.end(), 50 * kBlock), offsets.end());
  ASSERT_TRUE(finish());
  expect_whole_memory_once();
}

TEST_F(SourceMemory, ReservesOfManyTransfersLeaveSlotsForTheFirstPasses) {
  open(4);
  process_.start();
  std::vector<std::future<Status>> others;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "other-" + std::to_string(i);
    ASSERT_TRUE(mount_->make(kSourceRoot, name, wire::NodeType::kFile, {}, ""));
    others.push_back(std::async(
        std::launch::async, [this, name] { return mount_->send_memory(name, process_.frozen()); }));
  }
  for (auto& other : others) {
    ASSERT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_TRUE(other.get());
  }
}

TEST_F(SourceMemory, EndOfTheProcessFailsTheTransferWhileBlocksAreWanted) {
  open();
  process_.start();
  const FrozenMemory memory = process_.frozen();
  process_.end();
  want(50 * kBlock);
  const Status sent = mount_->send_memory(kName, memory);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().errno_value, ESRCH) << sent.error().message;
  EXPECT_FALSE(node_->checkpoint->status());
}

TEST_F(SourceMemory, SecondTransferToTheSameFileIsRefused) {
  open();
  begin();
  ASSERT_TRUE(eventually_announced(3));
  const Status second = mount_->send_memory(kName, FrozenMemory{});
  EXPECT_EQ(second.error().errno_value, EBUSY);
  ASSERT_TRUE(finish());
  expect_whole_memory_once();
}

TEST_F(SourceMemory, SessionHasTheLongestPatienceOfItsUnsealedCheckpoints) {
  open();
  const auto other = mount_->make(kSourceRoot, "other", wire::NodeType::kFile, {}, "").value();
  other->checkpoint->outlet = outlet_;
  const auto wait_for_peer = [this](const std::string& name, int64_t ms) {
    return answer({{"op", "wait-for-peer"}, {"checkpoint", name}, {"timeout_ms", ms}});
  };
  EXPECT_EQ(wait_for_peer("missing", 1)["errno"], ENOENT);
  EXPECT_TRUE(wait_for_peer(kName, 60'000)["ok"]);
  EXPECT_TRUE(wait_for_peer("other", 20'000)["ok"]);
  EXPECT_EQ(outlet_->patience(), std::chrono::seconds(60));
  begin();
  ASSERT_TRUE(finish());
  EXPECT_EQ(outlet_->patience(), std::chrono::seconds(60)) << "the seal needs the target, too";
  const auto sealed = mount_->commit(kName);
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_EQ(outlet_->patience(), std::chrono::seconds(20));
  ASSERT_TRUE(mount_->commit("other"));
  EXPECT_TRUE(wait_for_peer(kName, 60'000)["ok"]);
  EXPECT_EQ(outlet_->patience(), std::chrono::seconds(0)) << "it is sealed";
  EXPECT_TRUE(wait_for_peer("other", INT64_MAX)["ok"]);
}

// Tests the whole way over TCP, from a request at the target to the bytes in its store.
TEST(SourceMemoryStream, TargetReceivesWantedBytesBeforeTheRest) {
  std::mutex gate;
  MemorySink sink;
  sink.set_before_land([&] { std::lock_guard lock(gate); });
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  SourceOptions options;
  options.target_address = target.address();
  options.chunk_size_bytes = kBlock;
  options.pool_size_bytes = 4 * kBlock;
  options.transport.mode = TransportMode::kTcp;
  options.sender.stream_count = 1;
  auto mount = std::move(SourceMount::create(options).value());
  const auto node = mount->make(kSourceRoot, kName, wire::NodeType::kFile, {}, "").value();
  FrozenProcess process;
  process.clear(20 * kBlock, 10 * kBlock);
  process.start();
  const SessionId session = target.sessions().front().id;
  std::future<Status> sent;
  {
    std::lock_guard closed(gate);
    sent =
        std::async(std::launch::async, [&] { return mount->send_memory(kName, process.frozen()); });
    ASSERT_TRUE(eventually([&] { return sink.chunks_in_flight() == 3; }));
    target.want({session, node->id}, 25 * kBlock, 1);
    ASSERT_TRUE(eventually([&] { return sink.zeros().size() == 1; }));
    EXPECT_EQ(sink.zeros()[0].offset, 25 * kBlock);
    target.want({session, node->id}, 50 * kBlock, 1);
    ASSERT_TRUE(eventually([&] { return sink.chunks_in_flight() == 4; }));
  }
  ASSERT_TRUE(sent.get());
  const auto landed = sink.landed_offsets();
  EXPECT_EQ(std::vector<uint64_t>(landed.begin(), landed.begin() + 4),
            (std::vector<uint64_t>{0, kBlock, 2 * kBlock, 50 * kBlock}));
  EXPECT_EQ(landed.size(), kBlocks - 10);
  EXPECT_TRUE(sink.content(node->id) == process.bytes());
  ASSERT_TRUE(mount->commit(kName));
  EXPECT_EQ(sink.violations(), std::vector<std::string>{});
}

}  // namespace
}  // namespace ppmr
