#include "processes/carried/written_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

class WrittenFiles : public testing::Test {
 protected:
  explicit WrittenFiles(std::string directory = testing::TempDir() + std::to_string(getpid()))
      : directory_(std::move(directory)) {}
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

  const std::string directory_;
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

// Files of user 1 in a directory of this user. It is not in Bazel's directory for tests, which this
// user may not enter.
class CutBack : public WrittenFiles {
 protected:
  static constexpr uid_t kUser = 1;
  CutBack()
      : WrittenFiles(std::filesystem::temp_directory_path() /
                     ("cut_back-" + std::to_string(getpid()))) {}
  void SetUp() override {
    WrittenFiles::SetUp();
    if (geteuid() != 0 || chown(directory_.c_str(), kUser, kUser) != 0) {
      GTEST_SKIP() << "NOT TESTED: needs root to make files of another user";
    }
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  }
  void make(const std::string& name, uid_t user, const std::string& contents) const {
    std::ofstream(path_of(name)) << contents;
    ASSERT_EQ(chown(path_of(name).c_str(), user, user), 0);
    ASSERT_EQ(chmod(path_of(name).c_str(), 0600), 0);
  }
  auto size(const std::string& name) const { return std::filesystem::file_size(path_of(name)); }
  WrittenFile noted(const std::string& name, uint64_t bytes, uid_t owner) const {
    return {path_of(name), bytes, true, 0, FileOwner{owner, owner}};
  }
};

TEST_F(CutBack, CutsAFileOfTheUserAndAFileOfRoot) {
  make("log", kUser, "12345678");
  make("of root", 0, "12345678");
  const Status cut = cut_back(noted("log", 4, kUser));
  EXPECT_TRUE(cut) << cut.error().message;
  EXPECT_EQ(size("log"), 4u);
  EXPECT_TRUE(cut_back(noted("of root", 3, 0)));
  EXPECT_EQ(size("of root"), 3u);
  WrittenFile unknown = noted("log", 2, kUser);
  unknown.owner.reset();
  EXPECT_TRUE(cut_back(unknown)) << "an older version notes no owner";
  EXPECT_EQ(size("log"), 2u);
}

TEST_F(CutBack, CutsThroughALinkThatTheUserMayFollow) {
  std::filesystem::create_directory(path_of("disk"));
  ASSERT_EQ(chown(path_of("disk").c_str(), kUser, kUser), 0);
  make("disk/log", kUser, "12345678");
  std::filesystem::create_directory_symlink("disk", path_of("data"));
  EXPECT_TRUE(cut_back(noted("data/log", 4, kUser)));
  EXPECT_EQ(size("disk/log"), 4u);
}

TEST_F(CutBack, LeavesAFileToWhichTheUserHasLinked) {
  make("of root", 0, "12345678");
  std::filesystem::create_symlink("of root", path_of("log"));
  std::filesystem::create_directory(path_of("rooms"));
  make("rooms/log", 0, "12345678");
  std::filesystem::create_directory_symlink("rooms", path_of("data"));
  for (const std::optional<FileOwner>& owner :
       {std::optional(FileOwner{kUser, kUser}), std::optional(FileOwner{}),
        std::optional<FileOwner>()}) {
    for (const char* name : {"log", "data/log"}) {
      WrittenFile file = noted(name, 4, 0);
      file.owner = owner;
      EXPECT_FALSE(cut_back(file)) << name;
    }
  }
  EXPECT_EQ(size("of root"), 8u);
  EXPECT_EQ(size("rooms/log"), 8u);
}

TEST_F(CutBack, LeavesAFileOfAnotherUserAndAPipe) {
  make("log", kUser + 1, "12345678");
  ASSERT_EQ(chmod(path_of("log").c_str(), 0666), 0);
  EXPECT_FALSE(cut_back(noted("log", 4, kUser)));
  EXPECT_FALSE(cut_back(noted("log", 4, 0)));
  EXPECT_EQ(size("log"), 8u);
  ASSERT_EQ(mkfifo(path_of("pipe").c_str(), 0666), 0);
  EXPECT_FALSE(cut_back(noted("pipe", 4, 0)));
  EXPECT_FALSE(cut_back(noted("missing", 4, kUser)));
}

TEST_F(CutBack, LeavesAFileThatIsNotLonger) {
  make("log", kUser, "12");
  EXPECT_FALSE(cut_back(noted("log", 4, kUser)));
  EXPECT_EQ(size("log"), 2u);
}

TEST_F(WrittenFiles, NotesTheOwner) {
  const UniqueFd log = opened("log", O_WRONLY | O_APPEND);
  const auto files = found();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].owner, (FileOwner{geteuid(), getegid()}));
  const std::string packed = path_of("packed");
  ASSERT_TRUE(write_written_files(packed, {files[0], {.path = "/old"}}));
  const auto loaded = load_written_files(packed);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->at(0).owner, files[0].owner);
  EXPECT_EQ(loaded->at(1).owner, std::nullopt);
}

}  // namespace
}  // namespace ppmr
