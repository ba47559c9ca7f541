#include "jobs/agent/record_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/test_directory.h"

namespace ppmr {
namespace {

// A directory in place of the file: read(2) fails, as on a disk that fails.
TEST(RecordFiles, SkipsAFileThatCannotBeRead) {
  const TestDirectory directory;
  const auto files = RecordFiles::open(directory.path());
  ASSERT_TRUE(files) << files.error().message;
  ASSERT_TRUE(files->write("good", {{"id", "a"}}));
  std::filesystem::create_directory(directory.path() + "/bad.json");
  const auto records = files->read_all();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("id"), "a");
}

TEST(RecordFiles, FileThatCannotBeLookedForMayExist) {
  const TestDirectory test;
  const std::string directory = test.path() + "/records";
  const auto files = RecordFiles::open(directory);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_FALSE(files->exists("a"));
  ASSERT_TRUE(std::filesystem::remove(directory));
  std::ofstream(directory) << "not a directory";
  EXPECT_TRUE(files->exists("a"));
}

}  // namespace
}  // namespace ppmr
