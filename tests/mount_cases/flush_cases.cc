// fsync, fdatasync, close and shared descriptors.
#include <unistd.h>

#include <array>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Flush : public MountCase {
 protected:
  // Reads `bytes.size()` bytes at the start. Does not check the file's size, because its writer may
  // still have it open.
  testing::AssertionResult starts_with(const std::string& path, std::string_view bytes) {
    Fd fd = open_file(path, O_RDONLY);
    if (!fd.ok())
      return testing::AssertionFailure() << "open " << path << ": " << errno_name(errno);
    std::string got(bytes.size(), '\0');
    size_t done = 0;
    while (done < got.size()) {
      const ssize_t count =
          ::pread(fd.get(), got.data() + done, got.size() - done, static_cast<off_t>(done));
      if (count < 0)
        return testing::AssertionFailure() << "pread at " << done << ": " << errno_name(errno);
      if (count == 0) return testing::AssertionFailure() << "end of file at " << done;
      done += static_cast<size_t>(count);
    }
    return same_bytes(got, bytes);
  }
};

TEST_F(Flush, FsyncMakesTheBytesReadableBeforeClose) {
  const std::string bytes = pattern(1'300'001, 1);
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, bytes, 100'000));
  ASSERT_EQ(errno_of(::fsync(fd.get())), 0);
  EXPECT_TRUE(starts_with(at_reader("file"), bytes));
  ASSERT_TRUE(write_whole(fd, "tail"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), bytes + "tail"));
}

TEST_F(Flush, FdatasyncMakesTheBytesReadableBeforeClose) {
  const std::string bytes = pattern(70'001, 2);
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, bytes));
  ASSERT_EQ(errno_of(::fdatasync(fd.get())), 0);
  EXPECT_TRUE(starts_with(at_reader("file"), bytes));
  ASSERT_EQ(fd.close(), 0);
}

TEST_F(Flush, FsyncAfterEverySmallWriteKeepsAllBytes) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "record " + std::to_string(i) + "\n";
    ASSERT_TRUE(write_whole(fd, line));
    ASSERT_EQ(errno_of(::fsync(fd.get())), 0);
    expected += line;
  }
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), expected));
}

TEST_F(Flush, OfAnEmptyFileSucceeds) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(errno_of(::fsync(fd.get())), 0);
  EXPECT_EQ(errno_of(::fdatasync(fd.get())), 0);
  EXPECT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), ""));
}

TEST_F(Flush, OfAReadOnlyDescriptorSucceeds) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  Fd fd = open_file(at_writer("file"), O_RDONLY);
  EXPECT_EQ(errno_of(::fsync(fd.get())), 0);
  EXPECT_EQ(fd.close(), 0);
}

TEST_F(Flush, ClosingADuplicatedDescriptorLeavesTheOthersOpen) {
  Fd one = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(one.ok());
  Fd two(::dup(one.get()));
  Fd three(::dup(one.get()));
  ASSERT_TRUE(two.ok() && three.ok());
  ASSERT_TRUE(write_whole(one, "one "));
  EXPECT_EQ(one.close(), 0);
  ASSERT_TRUE(write_whole(two, "two "));
  EXPECT_EQ(two.close(), 0);
  ASSERT_TRUE(write_whole(three, "three"));
  EXPECT_EQ(three.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "one two three"));
}

TEST_F(Flush, TwoProcessesWithOneDescriptorKeepEveryLine) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  constexpr int kLines = 400;
  const auto write_lines = [&](char who) {
    for (int i = 0; i < kLines; ++i) {
      const std::string line = std::string(1, who) + " " + std::to_string(1000 + i) + "\n";
      if (!write_whole(fd, line)) return 1;
    }
    return 0;
  };
  Child child([&] { return write_lines('c') == 0 && fd.close() == 0 ? 0 : 1; });
  EXPECT_EQ(write_lines('p'), 0);
  EXPECT_EQ(child.wait(), 0);
  ASSERT_EQ(fd.close(), 0);

  // The processes share one offset, so no line overwrites another, and each process's lines keep
  // their order.
  std::string expected;
  for (int i = 0; i < kLines; ++i) expected += std::to_string(1000 + i) + "\n";
  std::string got(kLines * 2 * 7, '\0');
  Fd in = open_file(at_reader("file"), O_RDONLY);
  ASSERT_EQ(::read(in.get(), got.data(), got.size() + 0), static_cast<ssize_t>(got.size()));
  std::string from_child;
  std::string from_parent;
  for (size_t at = 0; at < got.size(); at += 7)
    (got[at] == 'c' ? from_child : from_parent) += got.substr(at + 2, 5);
  EXPECT_EQ(from_child, expected);
  EXPECT_EQ(from_parent, expected);
}

TEST_F(Flush, ChildCanWriteAfterItsParentClosedTheFile) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, "parent "));
  std::array<int, 2> closed{};
  ASSERT_EQ(errno_of(::pipe2(closed.data(), O_CLOEXEC)), 0);
  Fd parent_has_closed(closed[0]);
  Fd close_signal(closed[1]);
  Child child([&] {
    char byte = 0;
    (void)close_signal.close();  // the child's copy
    if (::read(parent_has_closed.get(), &byte, 1) != 0) return 1;
    return write_whole(fd, "child") && fd.close() == 0 ? 0 : 1;
  });
  ASSERT_EQ(fd.close(), 0);
  ASSERT_EQ(close_signal.close(), 0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "parent child"));
}

// The helpers of a checkpoint tool write the image to their standard output in this way.
TEST_F(Flush, StandardOutputRedirectedToAFileArrivesWhole) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  Child child([&] {
    ::dup2(fd.get(), STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", "echo one; (echo two; seq 3 1000); echo end", nullptr);
    return 127;
  });
  EXPECT_EQ(child.wait(), 0);
  ASSERT_EQ(fd.close(), 0);
  std::string expected = "one\ntwo\n";
  for (int i = 3; i <= 1000; ++i) expected += std::to_string(i) + "\n";
  EXPECT_TRUE(reads_as(at_reader("file"), expected + "end\n"));
}

}  // namespace
}  // namespace ppmr::mount_cases
