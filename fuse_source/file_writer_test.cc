#include "fuse_source/file_writer.h"

#include <gtest/gtest.h>

#include <map>

namespace ppmr {
namespace {

constexpr size_t kChunk = size_t{64} << 10;

// Records announced chunks and reports them as verified at once.
class RecordingOutlet final : public DiscardOutlet {
 public:
  struct Announced {
    uint64_t offset;
    std::string bytes;
    const std::byte* memory;
  };

  void announce(Chunk chunk) override {
    const auto bytes = chunk.lease.payload().subspan(chunk.slot_offset, chunk.length);
    announced.push_back({chunk.offset,
                         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                         bytes.data()});
    chunk.file->verified(chunk.turn, 0);
  }
  std::vector<Announced> announced;
};

class FileWriterTest : public testing::Test {
 protected:
  // Writes bytes that arrive in a slot of their own, as in the mount.
  void write(const std::string& text, uint64_t offset) {
    SlotLease lease = pool->try_acquire();
    ASSERT_TRUE(lease);
    std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(),
                lease.payload().data());
    const auto bytes = std::span<const std::byte>(lease.payload()).first(text.size());
    last_memory = bytes.data();
    CutChunks cut;
    if (!writer->append(bytes, offset, cut)) writer->adopt(std::move(lease), bytes, offset, cut);
    cut.announce(*outlet);
  }

  std::unique_ptr<BufferPool> pool = std::move(BufferPool::create(4 * kChunk, kChunk).value());
  std::shared_ptr<RecordingOutlet> outlet = std::make_shared<RecordingOutlet>();
  std::shared_ptr<FileWriter> writer =
      std::make_shared<FileWriter>(7, std::make_shared<StickyError>(), outlet);
  const std::byte* last_memory = nullptr;
};

TEST_F(FileWriterTest, SendsFullSizedWriteWithoutCopy) {
  write(std::string(kChunk, 'x'), 0);
  ASSERT_EQ(outlet->announced.size(), 1u);
  EXPECT_EQ(outlet->announced[0].memory, last_memory);
  EXPECT_EQ(outlet->announced[0].bytes, std::string(kChunk, 'x'));
  EXPECT_EQ(pool->counters().in_use, 0u);
}

TEST_F(FileWriterTest, GathersContiguousSmallWritesInOneChunk) {
  for (size_t i = 0; i < 16; ++i) write(std::string(4096, static_cast<char>('a' + i)), i * 4096);
  ASSERT_EQ(outlet->announced.size(), 1u);
  EXPECT_EQ(outlet->announced[0].bytes.size(), kChunk);
  EXPECT_EQ(outlet->announced[0].bytes.back(), 'p');
}

// If each write requested a thread, a writer that seeks would add an entry to the flusher's list
// with each write.
TEST_F(FileWriterTest, RequestsAWatchingThreadOnlyIfNoThreadWatchesTheFile) {
  const auto jump_to = [&](uint64_t offset) {
    SlotLease lease = pool->try_acquire();
    const auto bytes = std::span<const std::byte>(lease.payload()).first(4096);
    CutChunks cut;
    const bool needs_watcher = writer->adopt(std::move(lease), bytes, offset, cut);
    cut.announce(*outlet);
    return needs_watcher;
  };
  EXPECT_TRUE(jump_to(0));
  EXPECT_FALSE(jump_to(1 << 20));
  writer->flush();
  EXPECT_FALSE(jump_to(2 << 20)) << "it is still watched";
  EXPECT_FALSE(writer->flush_if_quiet(std::chrono::hours(1)));
  EXPECT_FALSE(jump_to(3 << 20));
  EXPECT_TRUE(writer->flush_if_quiet(std::chrono::microseconds(0)));
  EXPECT_TRUE(jump_to(4 << 20));
}

TEST_F(FileWriterTest, SendsGatheredBytesWhenTheNextWriteIsNotContiguous) {
  write("abc", 0);
  write("xyz", 100);
  ASSERT_EQ(outlet->announced.size(), 1u);
  EXPECT_EQ(outlet->announced[0].bytes, "abc");
  writer->flush();
  ASSERT_EQ(outlet->announced.size(), 2u);
  EXPECT_EQ(outlet->announced[1].offset, 100u);
  EXPECT_EQ(writer->size_bytes(), 103u);
}

TEST_F(FileWriterTest, StartsNextChunkWhenWriteDoesNotFit) {
  write(std::string(10'000, 'a'), 0);
  for (int i = 1; i < 6; ++i) write(std::string(10'000, 'a'), static_cast<uint64_t>(i) * 10'000);
  EXPECT_TRUE(outlet->announced.empty());
  write(std::string(10'000, 'b'), 60'000);
  ASSERT_EQ(outlet->announced.size(), 1u);
  EXPECT_EQ(outlet->announced[0].bytes, std::string(60'000, 'a'));
  ASSERT_TRUE(writer->drain(nullptr));
  ASSERT_EQ(outlet->announced.size(), 2u);
  EXPECT_EQ(outlet->announced[1].bytes, std::string(10'000, 'b'));
}

TEST_F(FileWriterTest, AnnouncesOverlappingWritesInOrder) {
  write("first", 0);
  write("second", 0);
  writer->flush();
  ASSERT_EQ(outlet->announced.size(), 2u);
  EXPECT_EQ(outlet->announced[0].bytes, "first");
  EXPECT_EQ(outlet->announced[1].bytes, "second");
}

TEST_F(FileWriterTest, SendsGatheredBytesOnlyAfterAPauseInWriting) {
  write("abc", 0);
  EXPECT_FALSE(writer->flush_if_quiet(std::chrono::hours(1)));
  EXPECT_TRUE(outlet->announced.empty());
  EXPECT_TRUE(writer->flush_if_quiet(std::chrono::microseconds(0)));
  EXPECT_EQ(outlet->announced.size(), 1u);
}

TEST_F(FileWriterTest, SizeIsEndOfFarthestWrite) {
  write("abc", 1000);
  write("abc", 0);
  EXPECT_EQ(writer->size_bytes(), 1003u);
}

}  // namespace
}  // namespace ppmr
