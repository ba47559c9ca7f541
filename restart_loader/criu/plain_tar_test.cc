#include "restart_loader/criu/plain_tar.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

class PlainTar : public testing::Test {
 protected:
  void SetUp() override {
    path_ = getenv("PATH");
    char name[] = "/tmp/plain-tar-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }

  std::string path_;
  std::string directory_;
};

TEST_F(PlainTar, ArchivesAreNotCompressed) {
  const std::string name = directory_ + "/a file's name";
  std::ofstream(name) << "content";
  const Status put = put_plain_tar_in_path(directory_);
  ASSERT_TRUE(put) << put.error().message;
  const std::string archive = directory_ + "/archive";
  const auto run = [&](const std::string& words) { return std::system(words.c_str()); };
  ASSERT_EQ(
      run("tar --create --gzip --directory " + directory_ + " \"a file's name\" > " + archive), 0);
  EXPECT_GT(std::filesystem::file_size(archive), 1024U) << "it is compressed";
  std::filesystem::remove(name);
  ASSERT_EQ(run("tar --extract --gzip --directory " + directory_ + " < " + archive), 0);
  std::string content;
  std::getline(std::ifstream(name), content);
  EXPECT_EQ(content, "content");
}

TEST_F(PlainTar, MayBePutTwice) {
  ASSERT_TRUE(put_plain_tar_in_path(directory_));
  ASSERT_TRUE(put_plain_tar_in_path(directory_));
  EXPECT_EQ(std::system("timeout 10 tar --version > /dev/null"), 0) << "it finds itself";
}

}  // namespace
}  // namespace ppmr
