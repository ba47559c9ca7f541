// Holes, truncation up and down, fallocate.
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Hole : public MountCase {
 protected:
  ShadowFile create() {
    Fd fd = open_file(at_writer("file"), O_RDWR | O_CREAT);
    EXPECT_TRUE(fd.ok()) << errno_name(errno);
    return ShadowFile(std::move(fd));
  }
  void close_and_compare(ShadowFile& file) {
    ASSERT_EQ(file.close(), 0);
    EXPECT_TRUE(reads_as(at_reader("file"), file.held()));
  }
};

TEST_F(Hole, BeforeAWritePastTheEndReadsAsZeroes) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(5 * kMiB + 77, 10));
  ASSERT_TRUE(file.write_at(100, 10));
  close_and_compare(file);
}

TEST_F(Hole, AfterTruncatingUpReadsAsZeroes) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 1000));
  ASSERT_TRUE(file.truncate(2 * kMiB + 1));
  close_and_compare(file);
}

TEST_F(Hole, FillsAnEmptyFileThatWasTruncatedUp) {
  ShadowFile file = create();
  ASSERT_TRUE(file.truncate(kMiB + 1));
  close_and_compare(file);
}

TEST_F(Hole, AfterTruncatingDownAndUpReadsAsZeroes) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 2 * kMiB));
  ASSERT_TRUE(file.truncate(4099));
  ASSERT_TRUE(file.truncate(kMiB + 9));
  EXPECT_TRUE(file.read_back());
  close_and_compare(file);
}

TEST_F(Hole, IsNotLeftByTruncatingToASmallerSize) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 3 * kMiB));
  ASSERT_TRUE(file.truncate(kMiB - 1));
  close_and_compare(file);
}

TEST_F(Hole, LeftByAWriteAfterTruncatingToZeroReadsAsZeroes) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 100'000));
  ASSERT_TRUE(file.truncate(0));
  ASSERT_TRUE(file.write_at(3, 5));
  close_and_compare(file);
}

TEST_F(Hole, AppearsWhenAClosedFileIsTruncatedUpByPath) {
  ASSERT_TRUE(write_file(at_writer("file"), pattern(100'000, 1)));
  ASSERT_EQ(errno_of(::truncate(at_writer("file").c_str(), 70'000)), 0);
  EXPECT_TRUE(soon_reads_as("file", pattern(100'000, 1).substr(0, 70'000)));
  ASSERT_EQ(errno_of(::truncate(at_writer("file").c_str(), 70'010)), 0);
  EXPECT_TRUE(soon_reads_as("file", pattern(100'000, 1).substr(0, 70'000) + std::string(10, '\0')));
}

TEST_F(Hole, PunchedRangeReadsAsZeroesAndKeepsTheSize) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 3 * kMiB));
  ASSERT_TRUE(file.punch(kMiB, kMiB));
  ASSERT_TRUE(file.punch(5000, 1));
  ASSERT_TRUE(file.punch(2 * kMiB + 100, 70'000));
  EXPECT_TRUE(file.read_back());
  close_and_compare(file);
}

TEST_F(Hole, PunchedAcrossTheEndKeepsTheSize) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, 100'000));
  ASSERT_TRUE(file.punch(90'000, kMiB));
  ASSERT_TRUE(file.punch(5 * kMiB, kMiB));
  close_and_compare(file);
}

TEST_F(Hole, PunchedRangeCanBeOverwritten) {
  ShadowFile file = create();
  ASSERT_TRUE(file.write_at(0, kMiB));
  ASSERT_TRUE(file.punch(0, kMiB));
  ASSERT_TRUE(file.write_at(4000, 200));
  close_and_compare(file);
}

TEST_F(Hole, PunchedAfterCloseIsVisibleToTheReader) {
  std::string expected = pattern(kMiB, 3);
  ASSERT_TRUE(write_file(at_writer("file"), expected));
  Fd fd = open_file(at_writer("file"), O_RDWR);
  ASSERT_TRUE(fd.ok());
  ShadowFile file(std::move(fd), expected);
  ASSERT_TRUE(file.punch(4096, 8192));
  close_and_compare(file);
}

TEST_F(Hole, PreallocationExtendsTheFileOrChangesNothing) {
  Fd fd = open_file(at_writer("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok());
  const int error = errno_of(::fallocate(fd.get(), 0, 0, 10'000));
  if (expects().preallocation) {
    EXPECT_EQ(error, 0) << errno_name(error);
  } else if (error != 0) {
    EXPECT_TRUE(is_refusal(error));
  }
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), std::string(error == 0 ? 10'000 : 0, '\0')));
}

}  // namespace
}  // namespace ppmr::mount_cases
