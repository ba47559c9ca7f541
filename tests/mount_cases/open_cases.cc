// Flags of open(2) and their errors.
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Open : public MountCase {
 protected:
  int error_of_open(const std::string& path, int flags) {
    Fd fd = open_file(path, flags);
    return fd.ok() ? 0 : errno;
  }
};

TEST_F(Open, OExclRefusesExistingNames) {
  EXPECT_EQ(error_of_open(at_writer("file"), O_WRONLY | O_CREAT | O_EXCL), 0);
  EXPECT_EQ(error_of_open(at_writer("file"), O_WRONLY | O_CREAT | O_EXCL), EEXIST);
  ASSERT_EQ(errno_of(::symlink("nowhere", at_writer("link").c_str())), 0);
  EXPECT_EQ(error_of_open(at_writer("link"), O_WRONLY | O_CREAT | O_EXCL), EEXIST);
}

TEST_F(Open, OCreatKeepsTheBytesOfAnExistingFile) {
  ASSERT_TRUE(write_file(at_writer("file"), "kept"));
  EXPECT_EQ(error_of_open(at_writer("file"), O_WRONLY | O_CREAT), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "kept"));
}

TEST_F(Open, ODirectoryRefusesFiles) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(error_of_open(at_writer("file"), O_RDONLY | O_DIRECTORY), ENOTDIR);
  EXPECT_EQ(error_of_open(at_reader("file"), O_RDONLY | O_DIRECTORY), ENOTDIR);
  EXPECT_EQ(error_of_open(at_reader(), O_RDONLY | O_DIRECTORY), 0);
}

TEST_F(Open, MissingFileIsENOENT) {
  EXPECT_EQ(error_of_open(at_writer("missing"), O_RDONLY), ENOENT);
  EXPECT_EQ(error_of_open(at_writer("missing"), O_WRONLY), ENOENT);
  EXPECT_EQ(error_of_open(at_writer("missing/file"), O_RDONLY), ENOENT);
  EXPECT_EQ(error_of_open(at_reader("missing"), O_RDONLY), ENOENT);
}

TEST_F(Open, PathThroughAFileIsENOTDIR) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(error_of_open(at_writer("file/child"), O_RDONLY), ENOTDIR);
  EXPECT_EQ(error_of_open(at_reader("file/child"), O_RDONLY), ENOTDIR);
}

TEST_F(Open, ONofollowRefusesSymbolicLinks) {
  ASSERT_EQ(errno_of(::symlink("file", at_writer("link").c_str())), 0);
  EXPECT_EQ(error_of_open(at_writer("link"), O_RDONLY | O_NOFOLLOW), ELOOP);
}

TEST_F(Open, OCreatThroughADanglingLinkCreatesItsTarget) {
  ASSERT_EQ(errno_of(::symlink("file", at_writer("link").c_str())), 0);
  ASSERT_TRUE(write_file(at_writer("link"), "through"));
  EXPECT_TRUE(reads_as(at_reader("file"), "through"));
}

TEST_F(Open, AccessModeLimitsReadsAndWrites) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  Fd reading = open_file(at_writer("file"), O_RDONLY);
  Fd writing = open_file(at_writer("file"), O_WRONLY);
  char byte = 0;
  EXPECT_EQ(errno_of(::write(reading.get(), "y", 1)), EBADF);
  EXPECT_EQ(errno_of(::read(writing.get(), &byte, 1)), EBADF);
}

TEST_F(Open, NewFileWithoutWritesIsEmpty) {
  Fd fd = open_file(at_writer("file"), O_RDONLY | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(soon_reads_as("file", ""));
}

TEST_F(Open, CreatorMayWriteToAFileOfReadOnlyMode) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT, 0400);
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(write_whole(fd, "written once"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(reads_as(at_reader("file"), "written once"));
}

TEST_F(Open, AllWritesWithOSyncArrive) {
  Fd fd = open_file(at_writer("file"), O_WRONLY | O_CREAT | O_SYNC);
  ASSERT_TRUE(fd.ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(write_whole(fd, "0123456789"));
  ASSERT_EQ(fd.close(), 0);
  EXPECT_TRUE(soon_present("file"));
  struct stat seen {};
  ASSERT_EQ(errno_of(::stat(at_reader("file").c_str(), &seen)), 0);
  EXPECT_EQ(seen.st_size, 100);
}

TEST_F(Open, FiveHundredFilesMayBeOpenAtOnce) {
  std::vector<Fd> files;
  for (int i = 0; i < 500; ++i) {
    files.push_back(open_file(at_writer("file-" + std::to_string(i)), O_WRONLY | O_CREAT));
    ASSERT_TRUE(files.back().ok()) << "file " << i << ": " << errno_name(errno);
  }
  for (size_t i = 0; i < files.size(); ++i)
    ASSERT_TRUE(write_whole(files[i], "number " + std::to_string(i)));
  for (size_t i = 0; i < files.size(); ++i) ASSERT_EQ(files[i].close(), 0);
  for (size_t i = 0; i < files.size(); ++i) {
    ASSERT_TRUE(reads_as(at_reader("file-" + std::to_string(i)), "number " + std::to_string(i)));
  }
}

TEST_F(Open, OTmpfileSucceedsOnlyOnTmpfsAndLeavesNoName) {
  Fd fd(::open(at_writer().c_str(), O_TMPFILE | O_RDWR, 0600));
  if (expects().anonymous_files) {
    EXPECT_TRUE(fd.ok()) << errno_name(errno);
  } else {
    EXPECT_TRUE(is_refusal(fd.ok() ? 0 : errno));
  }
  EXPECT_TRUE(list_directory(at_writer()).empty());
}

}  // namespace
}  // namespace ppmr::mount_cases
