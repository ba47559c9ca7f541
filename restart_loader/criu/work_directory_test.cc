#include "restart_loader/criu/work_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace ppmr {
namespace {

struct WorkDirectoryTest : testing::Test {
  WorkDirectoryTest() : home(testing::TempDir() + "work-" + std::to_string(getpid())) {
    std::filesystem::create_directory(home);
  }
  ~WorkDirectoryTest() override { std::filesystem::remove_all(home); }

  const std::string home;
};

TEST_F(WorkDirectoryTest, NewDirectoryIsPrivate) {
  const auto made = WorkDirectory::create(home + "/a/b/");
  ASSERT_TRUE(made) << made.error().message;
  struct stat status {};
  ASSERT_EQ(stat((home + "/a/b").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(WorkDirectoryTest, DirectoryThatOthersCanChangeIsRefused) {
  for (const mode_t mode : {0777, 01777, 0770}) {
    ASSERT_EQ(chmod(home.c_str(), mode), 0);
    const auto made = WorkDirectory::create(home);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().errno_value, EPERM) << made.error().message;
  }
  ASSERT_EQ(chmod(home.c_str(), 0755), 0);
  EXPECT_TRUE(WorkDirectory::create(home));
}

TEST_F(WorkDirectoryTest, DirectoryOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(chown(home.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(WorkDirectory::create(home));
}

TEST_F(WorkDirectoryTest, FileIsRefused) {
  std::filesystem::copy_file("/proc/self/stat", home + "/file");
  EXPECT_FALSE(WorkDirectory::create(home + "/file"));
}

}  // namespace
}  // namespace ppmr
