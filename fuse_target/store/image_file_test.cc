#include "fuse_target/store/image_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/crc32c.h"

namespace ppmr {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

class ImageFileTest : public ::testing::Test {
 protected:
  void use(size_t limit_bytes, bool consume = false, const char* spill_directory = nullptr) {
    StoreOptions options{limit_bytes, 0, 0};
    if (spill_directory != nullptr) {
      auto spill = SpillDirectory::open(spill_directory);
      ASSERT_TRUE(spill);
      spill_ = std::move(*spill);
      options.set_aside_bytes = 2 * kExtentBytes;
    }
    auto memory = StoreMemory::create(options, nullptr);
    ASSERT_TRUE(memory) << memory.error().message;
    memory_ = std::move(*memory);
    storage_.emplace(ImageStorage{*memory_, spill_.get(), consume});
    file_.emplace(*storage_);
  }
  ImageFile& file() { return *file_; }

  Result<Landing> reserve(uint64_t offset, uint32_t length) {
    Landing landing;
    landing.offset = offset;
    landing.length = length;
    if (auto reserved = file().reserve(landing); !reserved) return failure(reserved.error());
    return landing;
  }
  Status arrive(uint64_t offset, const std::string& bytes) {
    const auto length = static_cast<uint32_t>(bytes.size());
    if (auto announced = file().announce(offset, length); !announced) return announced;
    auto landing = reserve(offset, length);
    if (!landing) {
      file().retract(offset, length);
      return failure(landing.error());
    }
    const char* from = bytes.data();
    for (uint32_t i = 0; i < landing->piece_count; ++i) {
      std::memcpy(landing->pieces[i].data, from, landing->pieces[i].length);
      from += landing->pieces[i].length;
    }
    return file().land(*landing, 1);
  }
  // Returns "wait", "error N" or the bytes.
  std::string read(uint64_t offset, size_t length) {
    ReadPlan plan;
    auto ready = file().read(offset, length, plan);
    if (!ready) return "error " + std::to_string(ready.error().errno_value);
    if (*ready == ImageFile::Readiness::kWait) return "wait";
    EXPECT_TRUE(plan.make_ready());
    std::string bytes;
    for (const iovec& buffer : plan.buffers()) {
      bytes.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    }
    return bytes;
  }
  size_t used_bytes() const { return memory_->counters().used_bytes; }

  std::unique_ptr<SpillDirectory> spill_;
  std::unique_ptr<StoreMemory> memory_;
  std::optional<ImageStorage> storage_;
  std::optional<ImageFile> file_;
};

std::string pattern(size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(length, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TEST_F(ImageFileTest, PromisedMemoryIsFreeEvenIfOtherFilesFillTheStore) {
  use(16 * kExtentBytes);
  ASSERT_TRUE(arrive(0, pattern(4 * kKiB, 1)));  // so the file begins small
  ASSERT_TRUE(file().promise(5 * kExtentBytes - kMiB));
  std::vector<BlockRef> others;
  while (BlockRef block = memory_->allocate(kExtentBytes)) others.push_back(std::move(block));
  const std::string bytes = pattern(5 * kExtentBytes - kMiB, 2);
  for (size_t at = 4 * kKiB; at < bytes.size(); at += kMiB / 2) {
    ASSERT_TRUE(arrive(at, bytes.substr(at, kMiB / 2))) << at;
  }
  EXPECT_EQ(read(kExtentBytes, kExtentBytes), bytes.substr(kExtentBytes, kExtentBytes));
  EXPECT_FALSE(arrive(5 * kExtentBytes, "more than was promised"));
}

TEST_F(ImageFileTest, PromiseEndsWhenTheFileIsClosedOrDiscarded) {
  for (const bool closes : {true, false}) {
    use(16 * kExtentBytes);
    ASSERT_TRUE(file().promise(12 * kExtentBytes));
    EXPECT_EQ(memory_->counters().charged_bytes, 12 * kExtentBytes);
    ASSERT_TRUE(file().promise(12 * kExtentBytes)) << "again";
    EXPECT_EQ(memory_->counters().charged_bytes, 12 * kExtentBytes);
    closes ? file().close(0) : void(file().discard());
    EXPECT_EQ(memory_->counters().charged_bytes, 0U);
    file_.reset();
  }
}

TEST_F(ImageFileTest, RefusesAPromiseOfMoreThanTheFreeMemory) {
  use(16 * kExtentBytes);
  for (const uint64_t bytes : {17 * kExtentBytes, UINT64_MAX, UINT64_MAX - 4096}) {
    EXPECT_EQ(file().promise(bytes).error().errno_value, ENOSPC);
  }
  std::vector<BlockRef> others;
  for (int i = 0; i < 10; ++i) others.push_back(memory_->allocate(kExtentBytes));
  EXPECT_EQ(file().promise(7 * kExtentBytes).error().errno_value, ENOSPC);
  EXPECT_TRUE(file().promise(6 * kExtentBytes));
}

TEST_F(ImageFileTest, PromiseLeavesTheRestToTheDisk) {
  use(16 * kExtentBytes, false, "/var/tmp");
  EXPECT_TRUE(file().promise(100 * kExtentBytes));
}

TEST_F(ImageFileTest, PlacesAdjacentChunksSideBySideInOneExtent) {
  use(32 * kMiB);
  auto first = reserve(4 * kMiB, kMiB);
  auto second = reserve(5 * kMiB, kMiB);
  ASSERT_TRUE(first && second);
  ASSERT_EQ(first->piece_count, 1u);
  EXPECT_EQ(first->pieces[0].data + kMiB, second->pieces[0].data);
  file().abandon(*first);
  file().abandon(*second);
}

TEST_F(ImageFileTest, SplitsAChunkThatCrossesAnExtentBoundary) {
  use(32 * kMiB);
  const std::string bytes = pattern(kMiB, 1);
  EXPECT_TRUE(arrive(2 * kMiB - 1000, bytes));
  EXPECT_EQ(read(2 * kMiB - 1000, kMiB), bytes);
}

TEST_F(ImageFileTest, StoresASmallFileInASmallBlock) {
  use(32 * kMiB);
  EXPECT_TRUE(arrive(0, "small"));
  ImageFile other(*storage_);
  EXPECT_EQ(used_bytes(), kExtentBytes);
  auto landing = reserve(5, 4091);
  ASSERT_TRUE(landing);
  EXPECT_EQ(landing->piece_count, 1u);
  file().abandon(*landing);
  EXPECT_EQ(used_bytes(), kExtentBytes);
}

TEST_F(ImageFileTest, KeepsTheBytesOfASmallFileThatGrows) {
  use(32 * kMiB);
  std::string whole;
  for (uint32_t i = 0; i < 50; ++i) {
    const std::string part = pattern(100'000, i);
    ASSERT_TRUE(arrive(whole.size(), part));
    whole += part;
  }
  file().close(whole.size());
  EXPECT_EQ(read(0, whole.size()), whole);
}

TEST_F(ImageFileTest, ReadWaitsForMissingBytesAndIsNeverShort) {
  use(32 * kMiB);
  EXPECT_EQ(read(0, 4), "wait");
  ASSERT_TRUE(arrive(0, "abcd"));
  EXPECT_EQ(read(0, 4), "abcd");
  EXPECT_EQ(read(0, 5), "wait");
  file().close(4);
  EXPECT_EQ(read(0, 5), "abcd");
  EXPECT_EQ(read(4, 5), "");
  EXPECT_EQ(read(100, 5), "");
}

TEST_F(ImageFileTest, ReadOfARangeThatIsWrittenAgainWaitsForTheNewBytes) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(0, "abcdef"));
  ASSERT_TRUE(file().announce(2, 2));
  EXPECT_EQ(read(0, 2), "ab");
  EXPECT_EQ(read(0, 3), "wait");
  file().retract(2, 2);
  ASSERT_TRUE(arrive(2, "XY"));
  EXPECT_EQ(read(0, 6), "abXYef");
}

TEST_F(ImageFileTest, ReadsHolesAsZerosOnceTheSizeIsFinal) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(5 * kMiB, "end"));
  EXPECT_EQ(read(kMiB, 3), "wait");
  file().close(5 * kMiB + 10);
  EXPECT_EQ(read(kMiB, 3), std::string(3, '\0'));
  EXPECT_EQ(read(5 * kMiB - 1, 100), std::string(1, '\0') + "end" + std::string(7, '\0'));
}

TEST_F(ImageFileTest, AnnouncedZerosArriveWithoutMemory) {
  use(32 * kMiB);
  EXPECT_EQ(read(3 * kMiB, 10), "wait");
  file().zeros(2 * kMiB, 4 * kMiB);
  EXPECT_EQ(read(3 * kMiB, 10), std::string(10, '\0'));
  EXPECT_EQ(read(2 * kMiB - 1, 2), "wait");
  EXPECT_EQ(read(6 * kMiB - 1, 2), "wait");
  EXPECT_EQ(used_bytes(), 0u);
  EXPECT_EQ(file().facts().digest, 0u);
  EXPECT_EQ(file().facts().stored_bytes, 0u);
  EXPECT_EQ(file().facts().size_bytes, 6 * kMiB);
}

// Where the zeros are, the block of the chunk contains bytes of an earlier file.
TEST_F(ImageFileTest, AnnouncedZerosStayZerosBesideAChunkOfTheSameWindow) {
  use(kLimitMinBytes);
  for (uint64_t window = 0; window < 8; ++window) {
    ASSERT_TRUE(arrive(window * 2 * kMiB, std::string(2 * kMiB, 's')));
  }
  file_.emplace(*storage_);
  file().zeros(0, 3 * kMiB);
  ASSERT_TRUE(arrive(kMiB, "landed later"));
  ASSERT_TRUE(arrive(3 * kMiB, "x"));
  EXPECT_EQ(read(0, 3 * kMiB + 1),
            std::string(kMiB, '\0') + "landed later" + std::string(2 * kMiB - 12, '\0') + "x");
  ASSERT_TRUE(arrive(4 * kMiB, "y"));
  file().zeros(3 * kMiB + 1, kMiB - 1);
  EXPECT_EQ(read(3 * kMiB, kMiB + 1), "x" + std::string(kMiB - 1, '\0') + "y");
}

TEST_F(ImageFileTest, AnnouncedZerosReplaceNoBytes) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(100, "bytes"));
  const uint64_t digest = file().facts().digest;
  file().zeros(0, 200);
  EXPECT_EQ(read(0, 200), std::string(100, '\0') + "bytes" + std::string(95, '\0'));
  EXPECT_EQ(file().facts().digest, digest);
  file().zeros(UINT64_MAX / 4, UINT64_MAX);  // the range is cut off at the largest offset
  EXPECT_EQ(file().facts().size_bytes, uint64_t{INT64_MAX});
}

TEST_F(ImageFileTest, ReadAcrossAnnouncedZerosWaitsForTheChunkInFlight) {
  use(32 * kMiB);
  file().zeros(0, 1000);
  ASSERT_TRUE(file().announce(500, 5));
  EXPECT_EQ(read(0, 1000), "wait");
  file().retract(500, 5);
  ASSERT_TRUE(arrive(500, "bytes"));
  EXPECT_EQ(read(0, 1000), std::string(500, '\0') + "bytes" + std::string(495, '\0'));
}

TEST_F(ImageFileTest, TruncationRemovesAnnouncedZeros) {
  use(32 * kMiB);
  file().zeros(0, 1000);
  file().truncate(10);
  EXPECT_EQ(read(0, 10), std::string(10, '\0'));
  EXPECT_EQ(read(0, 11), "wait");
}

TEST_F(ImageFileTest, AnnouncedZerosCanBeConsumed) {
  use(32 * kMiB, /*consume=*/true);
  ASSERT_TRUE(arrive(0, "start"));
  file().zeros(5, 3 * kMiB);
  ASSERT_TRUE(arrive(5 + 3 * kMiB, "end"));
  EXPECT_EQ(read(0, kMiB), "start" + std::string(kMiB - 5, '\0'));
  EXPECT_EQ(read(kMiB, 2 * kMiB + 8), std::string(2 * kMiB + 5, '\0') + "end");
}

TEST_F(ImageFileTest, AnnouncedZerosStayZerosBesideSpilledBytes) {
  use(kLimitMinBytes, /*consume=*/false, "/tmp");
  file().zeros(100 * kMiB, 2 * kMiB);
  for (uint64_t at = 0; spill_->spilled_bytes() == 0; at += kMiB) {
    ASSERT_LT(at, 90 * kMiB);
    ASSERT_TRUE(arrive(at, pattern(kMiB, 1)));
  }
  ASSERT_TRUE(arrive(101 * kMiB, "spilled"));
  EXPECT_EQ(read(100 * kMiB, 2 * kMiB),
            std::string(kMiB, '\0') + "spilled" + std::string(kMiB - 7, '\0'));
}

TEST_F(ImageFileTest, MissingBytesHaveNeitherArrivedNorBeenAnnounced) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(0, std::string(100, 'a')));
  file().zeros(100, 100);
  ASSERT_TRUE(file().announce(200, 100));
  EXPECT_EQ(file().missing(0, 300), Range{});
  EXPECT_EQ(file().missing(50, 300), (Range{300, 350}));
  ASSERT_TRUE(arrive(400, std::string(100, 'b')));
  EXPECT_EQ(file().missing(250, 300), (Range{300, 550}));
  EXPECT_EQ(file().missing(250, 200), (Range{300, 400}));
  EXPECT_EQ(file().missing(UINT64_MAX - 1, 5), Range{});
  EXPECT_EQ(file().missing(5, UINT64_MAX - 1), Range{});
  file().retract(200, 100);
  file().close(1000);
  EXPECT_EQ(file().missing(250, 300), Range{}) << "holes of a closed file";
}

TEST_F(ImageFileTest, NeverShowsBytesOfAnEarlierFile) {
  use(kLimitMinBytes);
  for (uint64_t window = 0; window < 8; ++window) {
    ASSERT_TRUE(arrive(window * 2 * kMiB, std::string(2 * kMiB, 's')));
  }
  file_.emplace(*storage_);  // ends the earlier file; the store reuses its extents
  ASSERT_TRUE(arrive(2 * kMiB, "x"));
  ASSERT_TRUE(arrive(0, "y"));
  file().close(4 * kMiB);
  const std::string bytes = read(0, 4 * kMiB);
  EXPECT_EQ(bytes.find('s'), std::string::npos);
  EXPECT_EQ(bytes[0], 'y');
  EXPECT_EQ(bytes[2 * kMiB], 'x');
}

TEST_F(ImageFileTest, TruncateRemovesBytesAndALaterExtensionReadsAsZeros) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(0, std::string(3 * kMiB / 2, 'a')));
  ASSERT_TRUE(arrive(3 * kMiB / 2, std::string(3 * kMiB / 2, 'b')));
  EXPECT_EQ(file().facts().digest, 2u);
  file().truncate(3);
  EXPECT_EQ(file().facts().digest, 0u);
  EXPECT_EQ(used_bytes(), kExtentBytes);
  file().truncate(3 * kMiB);
  file().close(3 * kMiB);
  EXPECT_EQ(read(0, 3 * kMiB), "aaa" + std::string(3 * kMiB - 3, '\0'));
}

TEST_F(ImageFileTest, PunchedHoleReadsAsZerosAndFreesItsMemory) {
  use(32 * kMiB);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(arrive(i * 2 * kMiB, std::string(2 * kMiB, 'a')));
  file().punch_hole(kMiB, 5 * kMiB);
  file().close(8 * kMiB);
  EXPECT_EQ(read(kMiB - 1, 5 * kMiB + 2), "a" + std::string(5 * kMiB, '\0') + "a");
  EXPECT_EQ(used_bytes(), 2 * kExtentBytes);
}

TEST_F(ImageFileTest, RefusesChunksWhenMemoryIsFull) {
  use(kLimitMinBytes);
  Status status;
  uint64_t offset = 0;
  while (status && offset < 64 * kMiB) {
    status = arrive(offset, std::string(kMiB, 'a'));
    if (status) offset += kMiB;
  }
  EXPECT_EQ(offset, kLimitMinBytes);
  EXPECT_EQ(status.error().errno_value, ENOSPC);
}

// A source that breaks the protocol: the place of the chunk in flight exists, but has no memory.
TEST_F(ImageFileTest, RefusesAChunkWhosePlaceHasLostItsMemory) {
  use(kLimitMinBytes);
  ASSERT_TRUE(file().announce(0, kMiB));
  const auto landing = reserve(0, kMiB);
  ASSERT_TRUE(landing);
  file().truncate(0);
  uint64_t offset = 64 * kMiB;
  while (arrive(offset, std::string(kMiB, 'a'))) offset += kMiB;
  ASSERT_TRUE(file().announce(0, kMiB));
  ASSERT_FALSE(reserve(0, kMiB));
  EXPECT_EQ(file().land(*landing, 1).error().errno_value, EIO);
}

TEST_F(ImageFileTest, WithConsumeOptionAReadFreesTheBytesBeforeItsOffset) {
  use(kLimitMinBytes, /*consume=*/true);
  // Generated once: generating each chunk would dominate the run time.
  const std::string common = pattern(kMiB, 1);
  const auto bytes_at = [&common](uint64_t offset) {
    return common.substr(0, kMiB - sizeof offset) +
           std::string(reinterpret_cast<const char*>(&offset), sizeof offset);
  };
  uint64_t written = 0;
  uint64_t read_end = 0;
  for (int round = 0; round < 20; ++round) {
    Status status;
    while ((status = arrive(written, bytes_at(written)))) {
      written += kMiB;
    }
    EXPECT_EQ(status.error().errno_value, EAGAIN);
    for (; read_end < written; read_end += kMiB) {
      ASSERT_EQ(read(read_end, kMiB), bytes_at(read_end));
    }
    ASSERT_EQ(read(0, 1), "error " + std::to_string(ESPIPE));
  }
  file().close(written);
  EXPECT_EQ(read(written, 10), "");
  EXPECT_GT(written, 10 * kLimitMinBytes);
}

// A checkpoint fails, for example because the spill disk is full, with other chunks in flight.
TEST_F(ImageFileTest, LandingAChunkInTheSpillFileFailsAfterTheFileIsDiscarded) {
  use(kLimitMinBytes + 2 * kExtentBytes, /*consume=*/false, ::testing::TempDir().c_str());
  uint64_t offset = 0;
  while (spill_->spilled_bytes() == 0) {
    ASSERT_LT(offset, 40 * kMiB) << "no byte was spilled";
    ASSERT_TRUE(arrive(offset, pattern(kMiB, 1)));
    offset += kMiB;
  }
  ASSERT_TRUE(file().announce(offset, kMiB));
  const auto landing = reserve(offset, kMiB);
  ASSERT_TRUE(landing);
  ASSERT_NE(landing->store_data, 0u);
  (void)file().discard();
  const Status landed = file().land(*landing, 1);
  ASSERT_FALSE(landed);
  EXPECT_EQ(landed.error().errno_value, EIO);
}

TEST_F(ImageFileTest, SpillsBytesWhenMemoryIsFull) {
  use(kLimitMinBytes + 2 * kExtentBytes, /*consume=*/false, ::testing::TempDir().c_str());
  std::string whole;
  for (uint32_t i = 0; i < 40; ++i) {
    const std::string part = pattern(kMiB, i);
    ASSERT_TRUE(arrive(whole.size(), part));
    whole += part;
  }
  file().close(whole.size());
  EXPECT_GE(spill_->spilled_bytes(), 20 * kMiB);
  for (size_t offset = 0; offset < whole.size(); offset += 700'000) {
    ASSERT_EQ(read(offset, 700'000), whole.substr(offset, 700'000));
  }
  ASSERT_TRUE(arrive(30 * kMiB + 5, "again"));
  EXPECT_EQ(read(30 * kMiB + 5, 5), "again");
  file_.reset();
  EXPECT_EQ(spill_->spilled_bytes(), 0u);
}

BlockCipher::Key key_in(const UniqueFd& checksums) {
  BlockCipher::Key key;
  EXPECT_EQ(::pread(checksums.get(), key.data(), key.size(), 0), static_cast<ssize_t>(key.size()));
  return key;
}

void read_spilled(const UniqueFd& file, const BlockCipher::Key& key, const FileLoan::Piece& piece,
                  char* to) {
  constexpr uint64_t kBlock = SpillFile::kBlockBytes;
  const uint64_t first = piece.place_offset / kBlock;
  const uint64_t end = (piece.place_offset + piece.length + kBlock - 1) / kBlock;
  std::vector<std::byte> blocks((end - first) * kBlock);
  EXPECT_EQ(::pread(file.get(), blocks.data(), blocks.size(), static_cast<off_t>(first * kBlock)),
            static_cast<ssize_t>(blocks.size()));
  EXPECT_TRUE(BlockCipher(key).decrypt(first, blocks, blocks.data()));
  std::memcpy(to, blocks.data() + (piece.place_offset - first * kBlock), piece.length);
}

// Returns the bytes as a borrower sees them: spilled pieces through the spill file, the others
// through the memfds.
std::string borrowed(const FileLoan& loan, uint64_t begin) {
  std::string bytes(loan.end - begin, '\0');
  for (const FileLoan::Piece& piece : loan.pieces) {
    char* const to = bytes.data() + (piece.offset - begin);
    if (piece.place == FileLoan::kOnDisk) {
      const auto spilled = loan.on_disk->open_for_reading();
      const auto checksums = loan.on_disk->copy_checksums(0, 1);
      read_spilled(*spilled, key_in(*checksums), piece, to);
      continue;
    }
    EXPECT_EQ(::pread(loan.regions.at(piece.place), to, piece.length,
                      static_cast<off_t>(piece.place_offset)),
              static_cast<ssize_t>(piece.length));
  }
  return bytes;
}

TEST_F(ImageFileTest, LoanKeepsItsBytesAgainstReuse) {
  use(kLimitMinBytes);
  const std::string bytes = pattern(5 * kMiB + 123, 1);
  for (size_t at = 0; at < bytes.size(); at += kMiB) {
    ASSERT_TRUE(arrive(at, bytes.substr(at, kMiB)));
  }
  ASSERT_TRUE(arrive(9 * kMiB, bytes.substr(0, 1000)));
  file().close(10 * kMiB);
  auto loan = file().lend(0);
  ASSERT_TRUE(loan) << loan.error().message;
  EXPECT_EQ(loan->end, 10 * kMiB);
  (void)file().discard();
  file_.emplace(*storage_);
  uint64_t offset = 0;  // another file takes all free memory
  while (arrive(offset, std::string(kMiB, 'z'))) offset += kMiB;
  EXPECT_GT(offset, 4 * kMiB);
  std::string expected = bytes;
  expected.resize(10 * kMiB);
  expected.replace(9 * kMiB, 1000, bytes, 0, 1000);
  EXPECT_TRUE(borrowed(*loan, 0) == expected);
  const size_t used_before = used_bytes();
  *loan = {};
  EXPECT_LT(used_bytes(), used_before);
}

TEST_F(ImageFileTest, LoanMergesAdjoiningPieces) {
  use(64 * kMiB);
  for (uint64_t at = 0; at < 16 * kMiB; at += kMiB) ASSERT_TRUE(arrive(at, pattern(kMiB, 1)));
  file().close(16 * kMiB);
  const auto loan = file().lend(0);
  ASSERT_TRUE(loan);
  EXPECT_EQ(loan->pieces.size(), 1u) << "extents of a new store are in the order of its memory";
  EXPECT_EQ(loan->regions.size(), 1u);
}

TEST_F(ImageFileTest, LoanNamesTheStartOfTheNextPartOfALongFile) {
  use(32 * kMiB);
  const uint64_t far = 5 * kLoanSpanMaxBytes / 2;
  ASSERT_TRUE(arrive(10, "near"));
  ASSERT_TRUE(arrive(far, "far"));
  file().close(4 * kLoanSpanMaxBytes);
  auto first = file().lend(0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->pieces.size(), 1u);
  EXPECT_EQ(first->end, 10 + kLoanSpanMaxBytes);
  auto second = file().lend(first->end);  // the next part begins after the hole
  ASSERT_TRUE(second);
  ASSERT_EQ(second->pieces.size(), 1u);
  EXPECT_EQ(second->pieces[0].offset, far);
  EXPECT_EQ(second->end, far + kLoanSpanMaxBytes);
  auto last = file().lend(second->end);
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->pieces.empty());
  EXPECT_EQ(last->end, last->size_bytes);
}

TEST_F(ImageFileTest, LoanOfManySmallPiecesComesInParts) {
  use(64 * kMiB);
  const uint64_t count = kLoanPiecesMax + 10;
  for (uint64_t i = 0; i < count; ++i) ASSERT_TRUE(arrive(i * 2000, std::to_string(i)));
  file().close(count * 2000);
  uint64_t next = 0;
  for (uint64_t offset = 0; offset < count * 2000;) {
    auto loan = file().lend(offset);
    ASSERT_TRUE(loan);
    ASSERT_LE(loan->pieces.size(), kLoanPiecesMax);
    ASSERT_GT(loan->end, offset);
    for (const auto& piece : loan->pieces) {
      ASSERT_EQ(piece.offset, next * 2000);
      ++next;
    }
    offset = loan->end;
  }
  EXPECT_EQ(next, count);
}

TEST_F(ImageFileTest, LendsSpilledBytesWithTheirChecksums) {
  use(kLimitMinBytes + 2 * kExtentBytes, /*consume=*/false, ::testing::TempDir().c_str());
  std::string whole;
  for (uint32_t i = 0; i < 40; ++i) {
    const std::string part = pattern(kMiB, i);
    ASSERT_TRUE(arrive(whole.size(), part));
    whole += part;
  }
  file().close(whole.size());
  auto loan = file().lend(3 * kMiB);
  ASSERT_TRUE(loan);
  ASSERT_NE(loan->on_disk, nullptr);
  (void)file().discard();
  EXPECT_TRUE(borrowed(*loan, 3 * kMiB) == whole.substr(3 * kMiB));
  const auto checksums = loan->on_disk->copy_checksums(39 * 256, 2);
  ASSERT_TRUE(checksums);
  uint32_t checksum = 0;
  ASSERT_EQ(::pread(checksums->get(), &checksum, 4, sizeof(BlockCipher::Key) + 4), 4);
  EXPECT_EQ(checksum, crc32c(std::as_bytes(std::span(whole)).subspan(39 * kMiB + 4096, 4096)));
  const auto file = loan->on_disk->open_for_reading();
  ASSERT_TRUE(file);
  EXPECT_LT(::pwrite(file->get(), "x", 1, 0), 0);
  loan->on_disk.reset();
  EXPECT_EQ(spill_->spilled_bytes(), 0u);
}

TEST_F(ImageFileTest, LendsWholeWindowsThatHaveArrived) {
  use(64 * kMiB);
  const auto arrived_end = [this](uint64_t offset) {
    auto loan = file().lend_arrived(offset);
    EXPECT_TRUE(loan);
    return loan->end;
  };
  const std::string bytes = pattern(2 * kMiB, 7);
  EXPECT_EQ(arrived_end(0), 0u);
  ASSERT_TRUE(arrive(0, bytes.substr(0, kMiB)));
  EXPECT_EQ(arrived_end(0), 0u) << "half a window";
  ASSERT_TRUE(arrive(kMiB, bytes.substr(kMiB)));
  ASSERT_TRUE(arrive(4 * kMiB, bytes.substr(0, kMiB)));
  EXPECT_EQ(arrived_end(0), 2 * kMiB) << "up to the gap";
  EXPECT_EQ(arrived_end(2 * kMiB), 2 * kMiB);
  file().zeros(2 * kMiB, 2 * kMiB);
  file().zeros(5 * kMiB, 3 * kMiB);
  auto loan = file().lend_arrived(0);
  ASSERT_TRUE(loan);
  EXPECT_EQ(loan->end, 8 * kMiB);
  const std::string zeros(kMiB, '\0');
  EXPECT_TRUE(borrowed(*loan, 0).substr(0, 6 * kMiB) ==
              bytes + zeros + zeros + bytes.substr(0, kMiB) + zeros);
  ASSERT_TRUE(file().announce(6 * kMiB, kMiB));
  EXPECT_EQ(arrived_end(0), 6 * kMiB) << "bytes in flight";
  EXPECT_EQ(arrived_end(8 * kMiB), 8 * kMiB);
  file().retract(6 * kMiB, kMiB);
  ASSERT_TRUE(arrive(8 * kMiB, "the end"));
  EXPECT_EQ(arrived_end(0), 8 * kMiB);
  file().close(8 * kMiB + 7);
  EXPECT_EQ(arrived_end(0), 8 * kMiB + 7);
  EXPECT_EQ(arrived_end(8 * kMiB + 7), 8 * kMiB + 7);
}

TEST_F(ImageFileTest, LendsNoFileThatIsIncompleteOrConsumed) {
  use(32 * kMiB);
  ASSERT_TRUE(arrive(0, "bytes"));
  EXPECT_EQ(file().lend(0).error().errno_value, EBUSY);
  file().close(5);
  EXPECT_TRUE(file().lend(0));
  ASSERT_TRUE(file().announce(0, 5));
  EXPECT_EQ(file().lend(0).error().errno_value, EBUSY);
  file_.reset();
  use(32 * kMiB, /*consume=*/true);
  file().close(0);
  EXPECT_EQ(file().lend(0).error().errno_value, EOPNOTSUPP);
  EXPECT_EQ(file().lend_arrived(0).error().errno_value, EOPNOTSUPP);
}

TEST_F(ImageFileTest, RefusesAndFreesAChunkWhoseFileWasTruncatedBeforeItLanded) {
  use(32 * kMiB);
  ASSERT_TRUE(file().announce(4 * kMiB, 10));
  auto landing = reserve(4 * kMiB, 10);
  ASSERT_TRUE(landing);
  file().truncate(0);
  std::memset(landing->pieces[0].data, 'x', 10);
  EXPECT_FALSE(file().land(*landing, 1));
  EXPECT_EQ(used_bytes(), 0u);
}

TEST_F(ImageFileTest, RandomWritesTruncatesAndHolesGiveTheSameBytesAsAModel) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    use(64 * kMiB);
    std::mt19937 random(seed);
    std::string model;
    for (int step = 0; step < 60; ++step) {
      const uint64_t offset = random() % (6 * kMiB);
      const size_t length = 1 + random() % (random() % 2 == 0 ? kMiB : 5000);
      switch (random() % 6) {
        case 0:
          model.resize(offset);
          file().truncate(offset);
          break;
        case 1:
          for (size_t at = offset; at < std::min(model.size(), offset + length); ++at)
            model[at] = 0;
          file().punch_hole(offset, length);
          break;
        default: {
          const std::string bytes = pattern(length, random());
          if (model.size() < offset + length) model.resize(offset + length);
          model.replace(offset, length, bytes);
          ASSERT_TRUE(arrive(offset, bytes)) << "seed " << seed;
        }
      }
    }
    file().close(model.size());
    ASSERT_TRUE(read(0, 16 * kMiB) == model) << "seed " << seed;
    file_.reset();
  }
}

}  // namespace
}  // namespace ppmr
