#include "cli/timeline/picture_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/test_directory.h"
#include "base/whole_file.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

class PictureFile : public testing::Test {
 protected:
  void expect_written() const {
    const auto path = write_picture(directory_, "0123456789abcdef", "<svg/>");
    ASSERT_TRUE(path) << path.error().message;
    EXPECT_EQ(*path, directory_ + "/01234567.svg");
    EXPECT_EQ(read_whole_file(*path), "<svg/>");
    EXPECT_FALSE(fs::exists(*path + ".new"));
  }

  const TestDirectory top_;
  const std::string directory_ = top_.path();
};

TEST_F(PictureFile, ReplacesAnOlderPicture) {
  expect_written();
  expect_written();
}

TEST_F(PictureFile, ReplacesTheFileOfARunThatWasKilled) {
  std::ofstream(directory_ + "/01234567.svg.new") << "<sv";
  expect_written();
}

TEST_F(PictureFile, FollowsNoLink) {
  std::ofstream(directory_ + "/other") << "other";
  for (const char* name : {"/01234567.svg", "/01234567.svg.new"}) {
    fs::create_symlink("other", directory_ + name);
    expect_written();
    EXPECT_EQ(read_whole_file(directory_ + "/other"), "other");
    fs::remove(directory_ + "/01234567.svg");
  }
}

}  // namespace
}  // namespace ppmr
