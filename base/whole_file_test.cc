#include "base/whole_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/disk_faults.h"

namespace ppmr {
namespace {

class WholeFile : public testing::Test {
 protected:
  ~WholeFile() override { std::filesystem::remove(path_); }
  const std::string path_ = testing::TempDir() + "/whole_file";
};

TEST_F(WholeFile, IsReadAsItWasWritten) {
  ASSERT_TRUE(write_whole_file(path_, "a longer text", O_EXCL, 0600));
  EXPECT_EQ(read_whole_file(path_), "a longer text");
  ASSERT_TRUE(write_whole_file(path_, "text", O_TRUNC | O_SYNC, 0600));
  EXPECT_EQ(read_whole_file(path_), "text");
}

TEST_F(WholeFile, OfAnySizeIsReadToItsEnd) {
  for (const size_t bytes : {0, 1, 4095, 4096, 4097, 8192, 3 << 20}) {
    std::string text(bytes, 'x');
    if (bytes > 0) text.back() = 'y';
    ASSERT_TRUE(write_whole_file(path_, text, O_TRUNC, 0600));
    EXPECT_EQ(read_whole_file(path_), text) << bytes;
  }
}

TEST_F(WholeFile, IsNotReplacedWithExcl) {
  ASSERT_TRUE(write_whole_file(path_, "first", O_EXCL, 0600));
  EXPECT_EQ(write_whole_file(path_, "second", O_EXCL, 0600).error().errno_value, EEXIST);
  EXPECT_EQ(read_whole_file(path_), "first");
}

TEST_F(WholeFile, SaysWhyOnlyAPartWasWritten) {
  const FileSizeLimit limit(3);
  const Status written = write_whole_file(path_, "text", O_TRUNC, 0600);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().errno_value, EFBIG);
  EXPECT_EQ(written.error().message, "write " + path_ + ": File too large");
}

TEST_F(WholeFile, IsRemovedAgainIfItWasNewAndCannotBeWritten) {
  const FileSizeLimit limit(3);
  EXPECT_FALSE(write_whole_file(path_, "text", O_EXCL, 0600));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(WholeFile, ThatEndsTooEarlySaysSo) {
  ASSERT_TRUE(write_whole_file(path_, "text", O_EXCL, 0600));
  const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  std::string bytes(3, ' ');
  ASSERT_TRUE(read_all(file.get(), std::as_writable_bytes(std::span(bytes)), 1, path_));
  EXPECT_EQ(bytes, "ext");
  errno = EINTR;  // of an earlier call
  const Status read = read_all(file.get(), std::as_writable_bytes(std::span(bytes)), 2, path_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value, EIO);
  EXPECT_EQ(read.error().message, "read " + path_ + ": it ends too early");
}

TEST(ListDirectory, ReturnsAllEntries) {
  const auto entries = list_directory("/proc/self/task");
  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ(entries->front().path().filename(), std::to_string(getpid()));
}

TEST(ListDirectory, ReportsAMissingDirectory) {
  EXPECT_EQ(list_directory("/proc/self/missing").error().errno_value, ENOENT);
}

TEST(ListDirectory, ReportsADiskThatFailsAfterTheFirstEntry) {
  const ReaddirFault fault({"one"}, EIO);
  const auto entries = list_directory("/proc/self/task");
  ASSERT_FALSE(entries);
  EXPECT_EQ(entries.error().errno_value, EIO);
  EXPECT_EQ(entries.error().message, "list /proc/self/task: Input/output error");
}

}  // namespace
}  // namespace ppmr
