#include "mount/mount_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace ppmr {
namespace {

TEST(MountTable, ParsesTheFormatOfTheKernel) {
  const auto mounts = parse_mountinfo(
      "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "40 22 0:41 / /mnt/with\\040space\\134 rw,nosuid - fuse.ppmr /run/ppmr/ab\\040cd.sock "
      "rw,user_id=0\n"
      "41 22 0:41 /ck1 /mnt/bound rw shared:3 master:4 - fuse.ppmr /run/ppmr/ef.sock rw\n");
  ASSERT_EQ(mounts.size(), 3u);
  EXPECT_FALSE(mounts[0].is_ppmr());
  EXPECT_TRUE(mounts[1].is_ppmr());
  EXPECT_EQ(mounts[1].mountpoint, "/mnt/with space\\");
  EXPECT_EQ(mounts[1].source, "/run/ppmr/ab cd.sock");
  EXPECT_EQ(mounts[2].root, "/ck1");
}

TEST(MountTable, SkipsLinesThatCannotBeParsed) {
  EXPECT_TRUE(parse_mountinfo("").empty());
  EXPECT_TRUE(parse_mountinfo("\n\nnonsense\n1 2 3 4 5 6 7\n1 2 3 4 5 6 - fuse.ppmr\n").empty());
  EXPECT_EQ(parse_mountinfo("1 2 0:1 / /x\\04 rw - fuse.ppmr /s rw").at(0).mountpoint, "/x\\04");
}

TEST(MountTable, KeepsTheLastOfSeveralMountsOnOnePoint) {
  const auto mounts = parse_mountinfo(
      "40 22 0:41 / /mnt rw - fuse.ppmr /run/ppmr/a.sock rw\n"
      "41 22 0:42 / /mnt rw - tmpfs none rw\n");
  ASSERT_EQ(mounts.size(), 1u);
  EXPECT_FALSE(mounts[0].is_ppmr());
}

class FindMount : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::canonical(std::filesystem::temp_directory_path()) /
                       "mount_table_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    std::filesystem::create_directory(base_ + "/real");
    std::filesystem::create_directory_symlink("real", base_ + "/link");
    std::filesystem::create_directory_symlink(base_ + "/loop", base_ + "/loop");
    // The mount point does not exist, so an access to it would fail.
    mounts_ = {{"/", "/", "ext4", "/dev/sda1"},
               {base_ + "/real/mnt", "/", "fuse.ppmr", "/run/ppmr/a.sock"},
               {base_ + "/bound", "/ck1", "fuse.ppmr", "/run/ppmr/a.sock"}};
  }
  void TearDown() override { std::filesystem::remove_all(base_); }

  std::string remainder(const std::string& path) {
    auto found = find_mount(path, mounts_);
    return found ? found->remainder : "error " + std::to_string(found.error().errno_value);
  }
  std::string base_;
  std::vector<MountEntry> mounts_;
};

TEST_F(FindMount, ReturnsThePathAfterTheMountPoint) {
  EXPECT_EQ(remainder(base_ + "/real/mnt"), "");
  EXPECT_EQ(remainder(base_ + "/real/mnt/"), "");
  EXPECT_EQ(remainder(base_ + "/real/mnt/ck1"), "ck1");
  EXPECT_EQ(remainder(base_ + "/real/mnt//ck1/./a.img/"), "ck1/a.img");
}

TEST_F(FindMount, FollowsSymbolicLinksAboveTheMountPoint) {
  EXPECT_EQ(remainder(base_ + "/link/mnt/ck1"), "ck1");
  EXPECT_EQ(remainder(base_ + "/link/../real/mnt/ck1"), "ck1");
  EXPECT_EQ(remainder(base_ + "/loop/mnt"), "error " + std::to_string(ELOOP));
}

TEST_F(FindMount, ResolvesDotDotInsideAndOutOfTheMount) {
  EXPECT_EQ(remainder(base_ + "/real/mnt/ck1/../ck2"), "ck2");
  EXPECT_EQ(remainder(base_ + "/real/mnt/../mnt/ck1"), "ck1");
  EXPECT_EQ(remainder(base_ + "/real/mnt/ck1/../../"), "error " + std::to_string(ENODEV));
}

TEST_F(FindMount, ResolvesABindMountOfACheckpoint) {
  EXPECT_EQ(remainder(base_ + "/bound"), "ck1");
  EXPECT_EQ(remainder(base_ + "/bound/a.img"), "ck1/a.img");
}

TEST_F(FindMount, ResolvesRelativePathsFromTheWorkingDirectory) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(base_ + "/real");
  EXPECT_EQ(remainder("mnt/ck1"), "ck1");
  EXPECT_EQ(remainder("./mnt/ck1"), "ck1");
  std::filesystem::current_path(before);
}

TEST_F(FindMount, ReportsPathsOutsideOfPpmrMounts) {
  EXPECT_EQ(remainder(base_ + "/real"), "error " + std::to_string(ENODEV));
  EXPECT_EQ(remainder(base_ + "/real/mnt2"), "error " + std::to_string(ENOENT));
  EXPECT_EQ(remainder(""), "error " + std::to_string(ENOENT));
}

}  // namespace
}  // namespace ppmr
