#include "base/own_path.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

// A link in place of /proc/self/exe.
class OwnPath : public testing::Test {
 protected:
  OwnPath() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  Result<std::string> path_with_link_to(const std::string& file) const {
    std::filesystem::create_symlink(file, link_);
    return own_path(link_);
  }
  const std::string directory_ = testing::TempDir() + "/own_path_test";
  const std::string link_ = directory_ + "/exe";
  const std::string program_ = directory_ + "/ppmr";
};

TEST_F(OwnPath, IsThatOfTheRunningProgram) {
  EXPECT_TRUE(std::filesystem::equivalent(own_path().value(), "/proc/self/exe"));
}

TEST_F(OwnPath, ReplacedProgramIsNamedWithTheRemedy) {
  std::ofstream(program_) << "the new one";
  const auto path = path_with_link_to(program_ + " (deleted)");
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().errno_value, ESTALE);
  EXPECT_TRUE(path.error().message.starts_with(program_ + " was replaced")) << path.error().message;
  EXPECT_NE(path.error().message.find("restart this node's ppmr daemon"), std::string::npos);
}

TEST_F(OwnPath, NameThatEndsWithDeletedIsReturnedIfTheFileExists) {
  std::ofstream(program_ + " (deleted)") << "a program";
  EXPECT_EQ(path_with_link_to(program_ + " (deleted)").value(), program_ + " (deleted)");
}

TEST_F(OwnPath, LinkThatCannotBeReadIsNamed) {
  const auto path = own_path(link_);
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().errno_value, ENOENT);
  EXPECT_NE(path.error().message.find(link_), std::string::npos) << path.error().message;
}

}  // namespace
}  // namespace ppmr
