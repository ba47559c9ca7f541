// Orders, sizes and kinds of write calls.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Write : public MountCase {
 protected:
  ShadowFile create(int more_flags = 0) {
    Fd fd = open_file(at_writer("file"), O_RDWR | O_CREAT | more_flags);
    EXPECT_TRUE(fd.ok()) << errno_name(errno);
    return ShadowFile(std::move(fd));
  }
  void close_and_compare(ShadowFile& file) {
    ASSERT_EQ(file.close(), 0);
    EXPECT_TRUE(reads_as(at_reader("file"), file.held()));
  }
};

TEST_F(Write, OverlappingBytesAreReplaced) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 300'000));
  ASSERT_TRUE(file.write_at(100'000, 100'000));
  ASSERT_TRUE(file.write_at(150'000, 1));
  ASSERT_TRUE(file.write_at(199'999, 2 * kMiB));
  ASSERT_TRUE(file.write_at(0, 4096));
  close_and_compare(file);
}

TEST_F(Write, RepeatedAtOnePlaceKeepsTheLastBytes) {
  ShadowFile file = create();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(file.write_at(1000, 70'000));
  close_and_compare(file);
}

TEST_F(Write, AtDecreasingOffsetsArrivesWhole) {
  ShadowFile file = create();
  for (int i = 63; i >= 0; --i)
    ASSERT_TRUE(file.write_at(static_cast<uint64_t>(i) * 10'007, 10'007));
  close_and_compare(file);
}

TEST_F(Write, OfWholeChunksAtDecreasingOffsetsArrivesWhole) {
  ShadowFile file = create();
  for (int i = 7; i >= 0; --i) ASSERT_TRUE(file.write_at(static_cast<uint64_t>(i) * kMiB, kMiB));
  close_and_compare(file);
}

TEST_F(Write, OfAHeaderAfterTheBodyReplacesTheHeader) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 4096));
  ASSERT_TRUE(file.write_at(4096, 3 * kMiB));
  ASSERT_TRUE(file.write_at(0, 4096));
  close_and_compare(file);
}

TEST_F(Write, OfOneChunkLengthThatSpansTwoChunksArrives) {
  ShadowFile file = create();
  for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(file.write_at(512 * kKiB + 1 + i * kMiB, kMiB));
  close_and_compare(file);
}

class AppendedPieces : public Write, public testing::WithParamInterface<size_t> {};

TEST_P(AppendedPieces, ArriveInOrder) {
  const size_t piece = GetParam();
  const std::string bytes = pattern(std::min<size_t>(piece * 500, 3 * kMiB), piece);
  ASSERT_TRUE(write_file(at_writer("file"), bytes, piece));
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

INSTANTIATE_TEST_SUITE_P(Of, AppendedPieces, testing::Values(1, 7, 4095, 4097, 65'537, kMiB + 1),
                         [](const auto& info) { return std::to_string(info.param) + "Bytes"; });

TEST_F(Write, OfMixedSizesArrivesInOrder) {
  const std::string bytes = pattern(5 * kMiB, 5);
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  std::mt19937 random(20);
  const std::array<size_t, 7> sizes = {1, 7, 4095, 4096, 4097, 65'537, kMiB};
  for (size_t done = 0; done < bytes.size();) {
    const size_t now = std::min(sizes[random() % sizes.size()], bytes.size() - done);
    ASSERT_TRUE(write_whole(fd, std::string_view(bytes).substr(done, now), now));
    done += now;
  }
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes));
}

TEST_F(Write, OfZeroBytesChangesNothing) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(::write(fd.get(), "", 0), 0);
  ASSERT_TRUE(write_whole(fd, "abc"));
  EXPECT_EQ(::pwrite(fd.get(), "", 0, 100), 0);
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "abc"));
}

TEST_F(Write, FromManyVectorsArrivesInOrder) {
  constexpr size_t kVectors = 1024;
  std::string bytes = pattern(kVectors * 1031, 6);
  std::vector<iovec> vectors(kVectors);
  for (size_t i = 0; i < kVectors; ++i) vectors[i] = {bytes.data() + i * 1031, 1031};
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(::writev(fd.get(), vectors.data(), kVectors), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::writev(fd.get(), vectors.data(), 3), 3 * 1031);
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes + bytes.substr(0, 3 * 1031)));
}

TEST_F(Write, FromVectorsArrivesAtTheGivenOffset) {
  std::string bytes = pattern(90'000, 7);
  const std::array<iovec, 3> vectors = {iovec{bytes.data(), 1}, iovec{bytes.data() + 1, 70'000},
                                        iovec{bytes.data() + 70'001, 19'999}};
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(::pwritev(fd.get(), vectors.data(), 3, 12'345), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_CUR), 0) << "pwritev must not move the offset";
  ASSERT_TRUE(write_whole(fd, "head"));
  ASSERT_EQ(fd.close(), 0);
  std::string expected(12'345, '\0');
  expected.replace(0, 4, "head");
  EXPECT_TRUE(reads_as(at_reader("file"), expected + bytes));
}

TEST_F(Write, OAppendWritesAtTheEndDespiteSeeks) {
  ASSERT_TRUE(write_file(at_writer("file"), "first "));
  Fd fd = open_file(at_writer("file"), O_RDWR | O_APPEND);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, "second "));
  ASSERT_EQ(::lseek(fd.get(), 0, SEEK_SET), 0);
  ASSERT_TRUE(write_whole(fd, "third"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "first second third"));
}

TEST_F(Write, ThroughTwoOAppendDescriptorsArrivesInOrder) {
  Fd one = open_file(at_writer("file"), O_WRONLY | O_CREAT | O_APPEND);
  Fd two = open_file(at_writer("file"), O_WRONLY | O_APPEND);
  ASSERT_TRUE(one.ok() && two.ok());
  std::string expected;
  for (int i = 0; i < 500; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_TRUE(write_whole(i % 2 == 0 ? one : two, line));
    expected += line;
  }
  ASSERT_EQ(one.close(), 0);
  ASSERT_EQ(two.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), expected));
}

TEST_F(Write, AfterOTruncLeavesOnlyTheNewBytes) {
  ASSERT_TRUE(write_file(at_writer("file"), pattern(2 * kMiB + 3, 1)));
  EXPECT_TRUE(reads_as(at_reader("file"), pattern(2 * kMiB + 3, 1)));
  ASSERT_TRUE(write_file(at_writer("file"), pattern(70'001, 2)));
  EXPECT_TRUE(reads_as(at_reader("file"), pattern(70'001, 2)));
  ASSERT_TRUE(write_file(at_writer("file"), ""));
  EXPECT_TRUE(reads_as(at_reader("file"), ""));
}

TEST_F(Write, WithoutOTruncLeavesUnwrittenRangesUnchanged) {
  std::string expected = pattern(kMiB + 500, 1);
  ASSERT_TRUE(write_file(at_writer("file"), expected));
  Fd fd = open_file(at_writer("file"), O_WRONLY);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(pwrite_whole(fd, "changed", 65'530));
  ASSERT_EQ(fd.close(), 0);
  expected.replace(65'530, 7, "changed");
  EXPECT_TRUE(reads_as(at_reader("file"), expected));
}

TEST_F(Write, CanBeReadBackBeforeClose) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 10));
  EXPECT_TRUE(file.read_back());
  ASSERT_TRUE(file.write_at(10, 100'000));
  EXPECT_TRUE(file.read_back());
  ASSERT_TRUE(file.write_at(5, 2 * kMiB));
  EXPECT_TRUE(file.read_back());
  close_and_compare(file);
}

TEST_F(Write, WithODirectArrives) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT | O_DIRECT);
  if (!fd.ok() && errno == EINVAL) GTEST_SKIP() << "this file system has no O_DIRECT";
  ASSERT_TRUE(fd.ok()) << errno_name(errno);
  alignas(4096) static std::array<char, 256 * 1024> aligned;
  fill_pattern(aligned.data(), aligned.size(), 9);
  ASSERT_TRUE(write_whole(fd, std::string_view(aligned.data(), aligned.size())));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), std::string_view(aligned.data(), aligned.size())));
}

// Writes, truncations and holes in random order, for several seeds. The file must equal its model.
class RandomSteps : public Write, public testing::WithParamInterface<unsigned> {};

TEST_P(RandomSteps, OfWriteTruncateAndPunchHoleMatchAModelInMemory) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t bound) { return random() % bound; };
  ShadowFile file = create();
  for (int step = 0; step < 120; ++step) {
    const uint64_t size = below(3) == 0 ? below(2 * kMiB) + 1 : below(5000) + 1;
    switch (below(8)) {
      case 0:
        ASSERT_TRUE(file.truncate(below(3 * kMiB))) << "step " << step;
        break;
      case 1:
        ASSERT_TRUE(file.punch(below(3 * kMiB), size)) << "step " << step;
        break;
      case 2:
        ASSERT_TRUE(file.write_at(file.held().size(), size)) << "step " << step;
        break;
      case 3:
        ASSERT_TRUE(file.read_back()) << "step " << step;
        break;
      default:
        ASSERT_TRUE(file.write_at(below(3 * kMiB), size)) << "step " << step;
    }
  }
  close_and_compare(file);
}

INSTANTIATE_TEST_SUITE_P(Seed, RandomSteps, testing::Range(1u, 9u));

}  // namespace
}  // namespace ppmr::mount_cases
