// The test runs in a mount namespace of its own, so no mount is left behind.
#include "mount/fuse_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.h"

// fuse_open_channel() of libfuse 3.14 leaks the options that it has parsed.
extern "C" const char* __lsan_default_suppressions() { return "leak:fuse_opt_add_arg"; }

namespace ppmr {
namespace {

class FuseChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may mount without fusermount3";
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }

  void TearDown() override {
    while (::umount2(directory_.c_str(), MNT_DETACH) == 0) {
    }
    ::rmdir(directory_.c_str());
  }

  // Leaves a dead mount, as a FUSE daemon does when it is killed.
  void leave_dead_mount(const char* type) {
    const UniqueFd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(device);
    const std::string options =
        "fd=" + std::to_string(device.get()) + ",rootmode=40000,user_id=0,group_id=0";
    ASSERT_EQ(::mount("label", directory_.c_str(), type, 0, options.c_str()), 0);
  }

  bool is_dead() const {
    struct stat attributes {};
    return ::stat(directory_.c_str(), &attributes) != 0 && errno == ENOTCONN;
  }

  std::string directory_ =
      (std::filesystem::temp_directory_path() / "fuse-channel-XXXXXX").string();
};

TEST_F(FuseChannelTest, MountReplacesADeadMount) {
  leave_dead_mount("fuse.ppmr");
  leave_dead_mount("fuse.ppmr");
  ASSERT_TRUE(is_dead());
  auto channel = mount_fuse({.mountpoint = directory_, .source_label = "label"});
  ASSERT_TRUE(channel) << channel.error().message;
  channel->unmount();
  EXPECT_TRUE(std::filesystem::is_directory(directory_)) << "a dead mount is left below";
}

TEST_F(FuseChannelTest, DeadMountIsResolvedButNotRemoved) {
  leave_dead_mount("fuse.ppmr");
  const auto resolved = resolve_mountpoint(directory_ + "/");
  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(*resolved, directory_);
  EXPECT_TRUE(is_dead());
}

TEST_F(FuseChannelTest, DeadMountOfAnotherFileSystemIsKept) {
  leave_dead_mount("fuse.other");
  const auto channel = mount_fuse({.mountpoint = directory_, .source_label = "label"});
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().errno_value, EBUSY);
  EXPECT_NE(channel.error().message.find("umount -l " + directory_), std::string::npos);
  EXPECT_TRUE(is_dead());
}

TEST_F(FuseChannelTest, MountPointThatIsNoDirectoryIsRefused) {
  EXPECT_EQ(resolve_mountpoint(directory_ + "/missing").error().errno_value, ENOENT);
  EXPECT_EQ(resolve_mountpoint("/dev/null").error().errno_value, ENOTDIR);
}

}  // namespace
}  // namespace ppmr
