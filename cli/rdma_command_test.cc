#include "cli/rdma_command.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemon/background/verbs_library_file.h"

namespace ppmr {
namespace {

class RdmaCommand : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(mkdtemp(home_)); }
  void TearDown() override { std::filesystem::remove_all(home_); }

  std::string make(const std::string& name) {
    const std::filesystem::path path = std::filesystem::path(home_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "a library";
    return path;
  }

  char home_[32] = "/tmp/ppmr-rdma-XXXXXX";
};

TEST_F(RdmaCommand, FindsTheLibraryBesideThePackagesProgram) {
  const std::string library = make("lib/ppmr/libppmr-verbs.so");
  std::filesystem::create_directories(std::string(home_) + "/bin");
  EXPECT_EQ(find_verbs_library(std::string(home_) + "/bin").value(), library);
}

TEST_F(RdmaCommand, PrefersTheLibraryBesideTheProgram) {
  make("lib/ppmr/libppmr-verbs.so");
  const std::string built = make("bin/verbs_library/libppmr-verbs.so");
  EXPECT_EQ(find_verbs_library(std::string(home_) + "/bin").value(), built);
}

TEST_F(RdmaCommand, NamesThePlacesWhereItLookedForAMissingLibrary) {
  const auto missing = find_verbs_library(home_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().errno_value, ENOENT);
  EXPECT_NE(missing.error().message.find(home_), std::string::npos);
}

TEST_F(RdmaCommand, KeepsTheLibrariesThatLdPreloadNamesAlready) {
  EXPECT_EQ(preload_with("/lib/a.so", nullptr).value(), "/lib/a.so");
  EXPECT_EQ(preload_with("/lib/a.so", "").value(), "/lib/a.so");
  EXPECT_EQ(preload_with("/lib/a.so", "/lib/b.so").value(), "/lib/a.so:/lib/b.so");
  EXPECT_FALSE(preload_with("/my lib/a.so", nullptr));
  EXPECT_FALSE(preload_with("/lib:/a.so", nullptr));
}

TEST_F(RdmaCommand, DirectoryOfPeersIsPrivate) {
  const std::string path = std::string(home_) + "/peers";
  ASSERT_TRUE(prepare_verbs_directory(path));
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_TRUE(prepare_verbs_directory(path)) << "it exists";
  ASSERT_EQ(chmod(path.c_str(), 0770), 0);
  const auto open = prepare_verbs_directory(path);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().errno_value, EPERM);
  EXPECT_FALSE(prepare_verbs_directory(make("file")));
}

}  // namespace
}  // namespace ppmr
