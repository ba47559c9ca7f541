// unlink, with and without open descriptors.
#include <unistd.h>

#include "tests/mount_cases/mount_case.h"

namespace ppmr::mount_cases {
namespace {

class Unlink : public MountCase {
 protected:
  int unlink(const std::string& name) { return errno_of(::unlink(at_writer(name).c_str())); }
};

TEST_F(Unlink, RemovesTheName) {
  ASSERT_TRUE(write_file(at_writer("file"), pattern(100'000, 1)));
  EXPECT_TRUE(reads_as(at_reader("file"), pattern(100'000, 1)));
  ASSERT_EQ(unlink("file"), 0);
  EXPECT_TRUE(is_absent(at_writer("file")));
  EXPECT_TRUE(soon_absent("file"));
}

TEST_F(Unlink, OfAMissingFileIsENOENT) { EXPECT_EQ(unlink("missing"), ENOENT); }

TEST_F(Unlink, OfASymbolicLinkKeepsItsTarget) {
  ASSERT_TRUE(write_file(at_writer("file"), "kept"));
  ASSERT_EQ(errno_of(::symlink("file", at_writer("link").c_str())), 0);
  ASSERT_EQ(unlink("link"), 0);
  EXPECT_TRUE(soon_absent("link"));
  EXPECT_TRUE(reads_as(at_reader("file"), "kept"));
}

TEST_F(Unlink, OfAnOpenFileKeepsItsDescriptorUsable) {
  Fd fd = open_file(at_writer("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok());
  ShadowFile file(std::move(fd));
  ASSERT_TRUE(file.write_at(0, 100'000));
  ASSERT_EQ(unlink("file"), 0);
  EXPECT_TRUE(is_absent(at_writer("file")));
  EXPECT_TRUE(file.read_back());
  ASSERT_TRUE(file.write_at(100'000, 2 * kMiB));
  EXPECT_TRUE(file.read_back());
  struct stat seen {};
  ASSERT_EQ(errno_of(::fstat(file.fd().get(), &seen)), 0);
  EXPECT_EQ(static_cast<uint64_t>(seen.st_size), file.held().size());
  EXPECT_EQ(file.close(), 0);
  EXPECT_TRUE(soon_absent("file"));
  EXPECT_TRUE(list_directory(at_writer()).empty()) << "no hidden leftovers";
}

TEST_F(Unlink, OfAnOpenFileFreesTheNameAtOnce) {
  Fd old = open_file(at_writer("file"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(write_whole(old, "old bytes that must not show"));
  ASSERT_EQ(unlink("file"), 0);
  ASSERT_TRUE(write_file(at_writer("file"), "new"));
  ASSERT_TRUE(write_whole(old, "more of the old"));
  ASSERT_EQ(old.close(), 0);
  EXPECT_TRUE(soon_reads_as("file", "new"));
}

TEST_F(Unlink, MayAlternateWithCreateOfTheSameName) {
  for (uint64_t round = 0; round < 50; ++round) {
    const std::string bytes = pattern(1000 + round, round);
    ASSERT_TRUE(write_file(at_writer("file"), bytes));
    ASSERT_TRUE(soon_reads_as("file", bytes)) << "round " << round;
    ASSERT_EQ(unlink("file"), 0);
  }
  EXPECT_TRUE(soon_absent("file"));
}

}  // namespace
}  // namespace ppmr::mount_cases
