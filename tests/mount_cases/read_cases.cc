// Kinds, sizes and offsets of reads.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Read : public MountCase {
 protected:
  // Returns a file of `size` bytes that its writer has closed and that is open at the read side.
  Fd ready(size_t size) {
    bytes_ = pattern(size, 11);
    EXPECT_TRUE(write_file(at_writer("file"), bytes_));
    Fd fd = open_file(at_reader("file"), O_RDONLY);
    EXPECT_TRUE(fd.ok()) << errno_name(errno);
    return fd;
  }
  // Checks that a pread of `size` bytes at `offset` returns all bytes up to `size` or the end of
  // the file.
  testing::AssertionResult reads_at(const Fd& fd, uint64_t offset, size_t size) {
    std::string got(size, '\0');
    const ssize_t count = ::pread(fd.get(), got.data(), got.size(), static_cast<off_t>(offset));
    if (count < 0)
      return testing::AssertionFailure() << "pread at " << offset << ": " << errno_name(errno);
    got.resize(static_cast<size_t>(count));
    return same_bytes(got, offset >= bytes_.size() ? std::string_view()
                                                   : std::string_view(bytes_).substr(offset, size))
           << " (pread of " << size << " at " << offset << ")";
  }
  std::string bytes_;
};

TEST_F(Read, AtAndPastTheEndReturnsZero) {
  const Fd fd = ready(10'000);
  EXPECT_TRUE(reads_at(fd, 10'000, 100));
  EXPECT_TRUE(reads_at(fd, 10'001, 100));
  EXPECT_TRUE(reads_at(fd, 5 * kGiB, 100));
}

TEST_F(Read, AcrossTheEndReturnsTheRest) {
  const Fd fd = ready(kMiB + 77);
  EXPECT_TRUE(reads_at(fd, kMiB, 4096));
  EXPECT_TRUE(reads_at(fd, 100, 4 * kMiB));
  EXPECT_TRUE(reads_at(fd, kMiB + 76, 2));
}

TEST_F(Read, OfZeroBytesReturnsZero) {
  const Fd fd = ready(10);
  char byte = 0;
  EXPECT_EQ(::read(fd.get(), &byte, 0), 0);
  EXPECT_TRUE(reads_at(fd, 0, 10));
}

TEST_F(Read, LargeAndUnalignedReturnsEveryByte) {
  const Fd fd = ready(9 * kMiB + 13);
  EXPECT_TRUE(reads_at(fd, 1, 5 * kMiB + 3));
  EXPECT_TRUE(reads_at(fd, kMiB - 1, kMiB + 2));
  EXPECT_TRUE(reads_at(fd, 65'535, 3 * kMiB));
  EXPECT_TRUE(reads_at(fd, 0, 9 * kMiB + 13));
}

TEST_F(Read, AtRandomOffsetsReturnsTheirBytes) {
  const Fd fd = ready(4 * kMiB + 5);
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(reads_at(fd, random() % (4 * kMiB + 100), random() % 200'000));
}

TEST_F(Read, AtDecreasingOffsetsReturnsEveryByte) {
  const Fd fd = ready(2 * kMiB);
  for (int i = 31; i >= 0; --i)
    ASSERT_TRUE(reads_at(fd, static_cast<uint64_t>(i) * 65'536, 65'536));
}

TEST_F(Read, IntoAThousandVectorsReturnsEveryByte) {
  constexpr size_t kVectors = 1024;
  const Fd fd = ready(kVectors * 4096 + 10);
  std::string got(kVectors * 4096, '\0');
  std::vector<iovec> vectors(kVectors);
  // A restore reads pages of memory in any order; this case reads them from the last to the first.
  for (size_t i = 0; i < kVectors; ++i) vectors[i] = {got.data() + (kVectors - 1 - i) * 4096, 4096};
  ASSERT_EQ(::preadv(fd.get(), vectors.data(), kVectors, 10), static_cast<ssize_t>(got.size()));
  for (size_t i = 0; i < kVectors; ++i) {
    ASSERT_EQ(std::string_view(got).substr((kVectors - 1 - i) * 4096, 4096),
              std::string_view(bytes_).substr(10 + i * 4096, 4096))
        << i;
  }
}

TEST_F(Read, OneByteAtATimeReturnsEveryByte) {
  const Fd fd = ready(3000);
  std::string got;
  char byte = 0;
  while (::read(fd.get(), &byte, 1) == 1) got += byte;
  EXPECT_TRUE(same_bytes(got, bytes_));
}

TEST_F(Read, TwoDescriptorsHaveTwoOffsets) {
  const Fd one = ready(200'000);
  const Fd two = open_file(at_reader("file"), O_RDONLY);
  std::string first(100'000, '\0');
  std::string second(1000, '\0');
  ASSERT_EQ(::read(one.get(), first.data(), first.size()), 100'000);
  ASSERT_EQ(::read(two.get(), second.data(), second.size()), 1000);
  EXPECT_EQ(first, bytes_.substr(0, 100'000));
  EXPECT_EQ(second, bytes_.substr(0, 1000));
}

TEST_F(Read, AfterASeekFromTheEndReturnsTheLastBytes) {
  const Fd fd = ready(50'000);
  EXPECT_EQ(::lseek(fd.get(), -10, SEEK_END), 49'990);
  std::string got(100, '\0');
  ASSERT_EQ(::read(fd.get(), got.data(), got.size()), 10);
  EXPECT_EQ(got.substr(0, 10), bytes_.substr(49'990));
}

TEST_F(Read, CanBeRepeated) {
  for (int round = 0; round < 3; ++round) {
    if (round == 0) (void)ready(2 * kMiB + 1);
    EXPECT_TRUE(reads_as(at_reader("file"), bytes_)) << "round " << round;
  }
}

TEST_F(Read, PrivateMappingShowsEveryByte) {
  const Fd fd = ready(kMiB + 5000);
  void* mapping = ::mmap(nullptr, bytes_.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED) << errno_name(errno);
  EXPECT_TRUE(
      same_bytes(std::string_view(static_cast<const char*>(mapping), bytes_.size()), bytes_));
  EXPECT_EQ(::munmap(mapping, bytes_.size()), 0);
}

TEST_F(Read, MappingShowsTheNewBytesOfARewrittenFile) {
  {
    const Fd fd = ready(10'000);
    void* mapping = ::mmap(nullptr, bytes_.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    ASSERT_NE(mapping, MAP_FAILED) << errno_name(errno);
    EXPECT_TRUE(
        same_bytes(std::string_view(static_cast<const char*>(mapping), bytes_.size()), bytes_));
    ::munmap(mapping, bytes_.size());
  }
  const std::string fresh = pattern(10'000, 12);
  ASSERT_TRUE(write_file(at_writer("file"), fresh));
  const Fd fd = open_file(at_reader("file"), O_RDONLY);
  void* mapping = ::mmap(nullptr, fresh.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED) << errno_name(errno);
  EXPECT_TRUE(same_bytes(std::string_view(static_cast<const char*>(mapping), fresh.size()), fresh));
  ::munmap(mapping, fresh.size());
}

}  // namespace
}  // namespace ppmr::mount_cases
