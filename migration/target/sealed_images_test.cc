// In these tests a control server takes the place of the target's daemon, and a directory takes the
// place of the daemon's mount.
#include "migration/target/sealed_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemon/control/control_socket.h"

namespace ppmr {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class SealedImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = fs::temp_directory_path() / "sealed_images_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    fs::create_directories(base_ + "/in/job/last");
    server_ = std::move(*ControlServer::create({.directory = base_}));
    server_->serve(
        [this](const json& request, const ControlClient&, PassedDescriptors& passed) -> json {
          EXPECT_EQ(request, (json{{"op", "bundle"}, {"checkpoint", "job"}}));
          if (refused_with_ != 0) return refusal({refused_with_, "no bundle"});
          auto writer = BundleWriter::create({{"core-1.img", 0, true}}, is_flat_);
          passed.to_send.push_back(std::move(*writer->finish()));
          return {{"ok", true}, {"inode", bundled_inode_ ? *bundled_inode_ : inode()}};
        });
  }
  void TearDown() override {
    server_.reset();
    fs::remove_all(base_);
  }

  uint64_t inode() const {
    struct stat found {};
    EXPECT_EQ(stat((base_ + "/in/job").c_str(), &found), 0);
    return found.st_ino;
  }
  Result<SealedImages> open() {
    return SealedImages::open({.control_socket = server_->path(),
                               .mountpoint = base_ + "/in",
                               .checkpoint = "job",
                               .inode = sealed_inode_ ? *sealed_inode_ : inode()});
  }

  std::string base_;
  std::unique_ptr<ControlServer> server_;
  int refused_with_ = 0;
  bool is_flat_ = true;
  std::optional<uint64_t> bundled_inode_;
  std::optional<uint64_t> sealed_inode_;
};

TEST_F(SealedImagesTest, HoldTheDirectoryAndTheBundle) {
  auto images = open();
  ASSERT_TRUE(images) << images.error().message;
  ASSERT_NE(images->bundle(), nullptr);
  EXPECT_NE(images->bundle()->find("core-1.img"), nullptr);
  EXPECT_TRUE(fs::exists(images->bundle_path()));
  // Another checkpoint takes the name of the sealed one.
  fs::rename(base_ + "/in/job", base_ + "/in/old");
  fs::create_directory(base_ + "/in/job");
  std::ofstream(base_ + "/in/old/pages-1.img") << "old";
  EXPECT_TRUE(fs::exists(images->path() + "/pages-1.img"));
  EXPECT_EQ(images->with_names({EPERM, images->path() + "/core: no"}).message,
            base_ + "/in/job/core: no");
}

TEST_F(SealedImagesTest, CheckpointThatWasReplacedIsRefused) {
  sealed_inode_ = inode() + 1;
  EXPECT_EQ(open().error().errno_value, ESTALE);
  sealed_inode_.reset();
  bundled_inode_ = inode() + 1;  // the checkpoint is replaced between the two steps
  const Error error = open().error();
  EXPECT_EQ(error.errno_value, ESTALE);
  EXPECT_THAT(error.message, HasSubstr(base_ + "/in/job was replaced"));
}

TEST_F(SealedImagesTest, LinksAreRefusedUnlessTheBundleHasAllImages) {
  fs::create_symlink("/etc/passwd", base_ + "/in/job/core-2.img");
  EXPECT_TRUE(open()) << "CRIU does not read the checkpoint's names";
  is_flat_ = false;
  const Error error = open().error();
  EXPECT_EQ(error.errno_value, ELOOP);
  EXPECT_THAT(error.message, HasSubstr("core-2.img"));
}

TEST_F(SealedImagesTest, OpensWithoutABundleIfTheDaemonHasNone) {
  refused_with_ = EOPNOTSUPP;
  auto images = open();
  ASSERT_TRUE(images) << images.error().message;
  EXPECT_EQ(images->bundle(), nullptr);
  EXPECT_EQ(images->bundle_path(), "");
  refused_with_ = EIO;
  EXPECT_EQ(open().error().errno_value, EIO);
}

}  // namespace
}  // namespace ppmr
