#include "processes/carried/written_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

class WrittenFiles : public testing::Test {
 protected:
  UniqueFd opened(const std::string& name, int flags) const {
    return UniqueFd(open(path_of(name).c_str(), flags | O_CREAT | O_CLOEXEC, 0600));
  }
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }

  std::vector<WrittenFile> found() const {
    auto files = read_written_files({identify_self()});
    EXPECT_TRUE(files);
    std::erase_if(*files,
                  [this](const WrittenFile& file) { return !file.path.starts_with(directory_); });
    return *files;
  }

  const std::string directory_ = testing::TempDir() + std::to_string(getpid());
  void SetUp() override { std::filesystem::create_directory(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
};

TEST_F(WrittenFiles, ListsFilesThatAreOpenForWritingWithTheirSizes) {
  const UniqueFd log = opened("log", O_WRONLY | O_APPEND);
  const UniqueFd data = opened("data", O_RDWR);
  const UniqueFd read = opened("read", O_RDONLY);
  ASSERT_EQ(write(log.get(), "four", 4), 4);
  const auto files = found();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, path_of("data"));
  EXPECT_FALSE(files[0].is_appended);
  EXPECT_EQ(files[1].path, path_of("log"));
  EXPECT_EQ(files[1].size_bytes, 4u);
  EXPECT_TRUE(files[1].is_appended);
}

TEST_F(WrittenFiles, OneWriterThatDoesNotAppendDecides) {
  const UniqueFd first = opened("log", O_WRONLY | O_APPEND);
  const UniqueFd second = opened("log", O_WRONLY);
  const auto files = found();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_FALSE(files[0].is_appended);
}

TEST_F(WrittenFiles, FileWrittenInPlaceHasChanged) {
  const UniqueFd data = opened("data", O_RDWR);
  ASSERT_EQ(write(data.get(), "four", 4), 4);
  const timespec noted_times[] = {{.tv_sec = 1000, .tv_nsec = 7}, {.tv_sec = 1000, .tv_nsec = 7}};
  ASSERT_EQ(futimens(data.get(), noted_times), 0);
  WrittenFile noted = found().at(0);
  struct stat now {};
  ASSERT_EQ(fstat(data.get(), &now), 0);
  EXPECT_FALSE(has_changed(noted, now));
  ASSERT_EQ(pwrite(data.get(), "FOUR", 4, 0), 4);
  ASSERT_EQ(fstat(data.get(), &now), 0);
  EXPECT_EQ(static_cast<uint64_t>(now.st_size), noted.size_bytes);
  EXPECT_TRUE(has_changed(noted, now));
  noted.modified_ns = 0;
  EXPECT_FALSE(has_changed(noted, now)) << "an epoch of an earlier version has no times";
  ASSERT_EQ(ftruncate(data.get(), 2), 0);
  ASSERT_EQ(fstat(data.get(), &now), 0);
  EXPECT_TRUE(has_changed(noted, now));
}

TEST_F(WrittenFiles, DeletedFileIsNotListed) {
  const UniqueFd file = opened("gone", O_WRONLY);
  std::filesystem::remove(path_of("gone"));
  EXPECT_TRUE(found().empty());
}

TEST_F(WrittenFiles, ListIsReadAsItWasWritten) {
  const std::string path = path_of(kWrittenFilesFile);
  ASSERT_TRUE(write_written_files(path, {{"/a b", 7, true, -5}, {"/c\xff", 1ULL << 40, false}}));
  const auto files = load_written_files(path);
  ASSERT_TRUE(files);
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].path, "/a b");
  EXPECT_TRUE((*files)[0].is_appended);
  EXPECT_EQ((*files)[0].modified_ns, -5);
  EXPECT_EQ((*files)[1].path, "/c\xff");
  EXPECT_EQ((*files)[1].size_bytes, 1ULL << 40);
}

TEST_F(WrittenFiles, RefusesWhatPpmrHasNotWritten) {
  const std::string path = path_of(kWrittenFilesFile);
  ASSERT_TRUE(write_written_files(path, {{"relative", 7, true}}));
  EXPECT_EQ(load_written_files(path).error().errno_value, EPROTO);
  std::ofstream(path) << "no message";
  EXPECT_EQ(load_written_files(path).error().errno_value, EPROTO);
}

}  // namespace
}  // namespace ppmr
