// symlink and readlink.
#include <unistd.h>

#include <array>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class SymbolicLink : public MountCase {
 protected:
  int link(const std::string& to, const std::string& name) {
    return errno_of(::symlink(to.c_str(), at_writer(name).c_str()));
  }
  static std::string read_link(const std::string& path) {
    std::array<char, 8192> text{};
    const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
    return length < 0 ? errno_name(errno) : std::string(text.data(), static_cast<size_t>(length));
  }
};

TEST_F(SymbolicLink, ReadlinkReturnsTheStoredPath) {
  ASSERT_EQ(link("../previous/images", "parent"), 0);
  EXPECT_TRUE(soon_present("parent"));
  EXPECT_EQ(read_link(at_writer("parent")), "../previous/images");
  EXPECT_EQ(read_link(at_reader("parent")), "../previous/images");
}

TEST_F(SymbolicLink, IsFollowedToFilesAndDirectories) {
  ASSERT_EQ(errno_of(::mkdir(at_writer("d").c_str(), 0755)), 0);
  ASSERT_TRUE(write_file(at_writer("d/file"), "followed"));
  ASSERT_EQ(link("d", "to-directory"), 0);
  ASSERT_EQ(link("d/file", "to-file"), 0);
  EXPECT_TRUE(soon_reads_as("to-file", "followed"));
  EXPECT_TRUE(soon_reads_as("to-directory/file", "followed"));
}

TEST_F(SymbolicLink, DanglingLinkExistsAndItsTargetIsENOENT) {
  ASSERT_EQ(link("nowhere", "dangling"), 0);
  EXPECT_TRUE(soon_present("dangling"));
  struct stat seen {};
  EXPECT_EQ(errno_of(::stat(at_reader("dangling").c_str(), &seen)), ENOENT);
  ASSERT_EQ(errno_of(::lstat(at_reader("dangling").c_str(), &seen)), 0);
  EXPECT_TRUE(S_ISLNK(seen.st_mode));
}

TEST_F(SymbolicLink, MayHoldTheLongestPath) {
  const std::string to = std::string(2000, 'a') + "/" + std::string(2094, 'b');
  ASSERT_EQ(to.size(), 4095u);
  ASSERT_EQ(link(to, "long"), 0);
  EXPECT_TRUE(soon_present("long"));
  EXPECT_EQ(read_link(at_reader("long")), to);
  struct stat seen {};
  ASSERT_EQ(errno_of(::lstat(at_reader("long").c_str(), &seen)), 0);
  EXPECT_EQ(seen.st_size, 4095);
}

TEST_F(SymbolicLink, PathMayContainNonAsciiCharacters) {
  ASSERT_EQ(link("größe/中文 \n", "link"), 0);
  EXPECT_TRUE(soon_present("link"));
  EXPECT_EQ(read_link(at_reader("link")), "größe/中文 \n");
}

TEST_F(SymbolicLink, CreatingALinkWithAnExistingNameIsEEXIST) {
  ASSERT_EQ(link("one", "link"), 0);
  EXPECT_EQ(link("two", "link"), EEXIST);
  EXPECT_EQ(read_link(at_writer("link")), "one");
}

TEST_F(SymbolicLink, ReadlinkOfARegularFileIsEINVAL) {
  ASSERT_TRUE(write_file(at_writer("file"), "x"));
  EXPECT_EQ(read_link(at_writer("file")), "EINVAL");
  EXPECT_EQ(read_link(at_reader("file")), "EINVAL");
  EXPECT_EQ(read_link(at_writer("missing")), "ENOENT");
}

TEST_F(SymbolicLink, LoopIsELOOP) {
  ASSERT_EQ(link("two", "one"), 0);
  ASSERT_EQ(link("one", "two"), 0);
  EXPECT_EQ(errno_of(::open(at_writer("one").c_str(), O_RDONLY)), ELOOP);
}

TEST_F(SymbolicLink, CanBeRenamed) {
  ASSERT_EQ(link("somewhere", "old"), 0);
  ASSERT_EQ(errno_of(::rename(at_writer("old").c_str(), at_writer("new").c_str())), 0);
  EXPECT_TRUE(soon_present("new"));
  EXPECT_EQ(read_link(at_reader("new")), "somewhere");
}

}  // namespace
}  // namespace ppmr::mount_cases
