// Sends directories of this process in rounds, through the format of the wire, and builds them
// again.
#include "processes/files/file_rounds.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/disk_faults.h"
#include "base/whole_file.h"
#include "processes/files/page_digest.h"
#include "processes/files/tmpfs_builder.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

const FileStatus kSent = {.size_bytes = 10,
                          .change_ns = 1'000'000'000,
                          .status_ns = 1'000'000'000,
                          .looked_ns = 9'000'000'000,
                          .is_in_doubt = false};

TEST(MayHaveChanged, IsFalseIfTheStatusIsTheSame) {
  FileStatus now = kSent;
  now.looked_ns = 10'000'000'000;
  EXPECT_FALSE(may_have_changed(kSent, now));
}

TEST(MayHaveChanged, IsTrueIfAnyTimeOrTheSizeDiffers) {
  for (const auto field : {&FileStatus::change_ns, &FileStatus::status_ns}) {
    FileStatus now = kSent;
    now.*field += 1;
    EXPECT_TRUE(may_have_changed(kSent, now));
  }
  FileStatus now = kSent;
  now.size_bytes = 11;
  EXPECT_TRUE(may_have_changed(kSent, now));
}

TEST(MayHaveChanged, IsTrueIfTheFileIsOrWasInDoubt) {
  FileStatus mapped = kSent;
  mapped.is_in_doubt = true;
  EXPECT_TRUE(may_have_changed(kSent, mapped));
  EXPECT_TRUE(may_have_changed(mapped, kSent));
}

TEST(MayHaveChanged, IsTrueIfTheFileWasWrittenInTheTickOfTheLook) {
  FileStatus sent = kSent;
  sent.looked_ns = sent.status_ns + 1'000'000;
  EXPECT_TRUE(may_have_changed(sent, sent));
}

TEST(PageDigest, ShortPageHasTheDigestOfThePageFilledWithZeros) {
  const std::string bytes(kFilePageBytes, '\0');
  const std::string text = "abc";
  std::string filled = bytes;
  filled.replace(0, text.size(), text);
  const auto digest = [](const std::string& of) {
    return page_digest(std::as_bytes(std::span(of)));
  };
  EXPECT_EQ(digest(text), digest(filled));
  EXPECT_NE(digest(text), digest(bytes));
  EXPECT_NE(digest(bytes), kHole);
}

class FileRoundsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: mounts a tmpfs";
    char name[] = "/dev/shm/file-rounds-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    top_ = name;
    from_ = top_ / "from";
    built_ = top_ / "built";
    fs::create_directory(from_);
  }
  void TearDown() override {
    if (top_.empty()) return;
    remove_built_tmpfs(built_);
    EXPECT_FALSE(fs::exists(built_)) << "something is left";
    fs::remove_all(top_);
  }

  void begin(const std::string& options = "rw,size=65536k,nr_inodes=1000,mode=700") {
    struct stat status {};
    ASSERT_EQ(stat(from_.c_str(), &status), 0);
    std::vector<PrivateTmpfs> all;
    all.push_back({UniqueFd(open(from_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), status.st_dev,
                   options, from_});
    rounds_ = std::make_unique<FileRounds>(std::move(all));
    builder_ = std::make_unique<TmpfsBuilder>(built_);
  }

  // Sends a part through the wire. Returns the bytes of files that it has.
  Result<uint64_t> send(bool is_last = false) {
    std::string bytes;
    append_file_record(file_record::Part{parts_++}, bytes);
    const auto sink = [&](const FileRecord& record) -> Status {
      append_file_record(record, bytes);
      return {};
    };
    const auto sent = is_last ? send_last(sink) : rounds_->send_round(getpid(), sink);
    if (!sent) return sent;
    if (!is_last && segments_) {
      if (const auto more = segments_->send_round(getpid(), sink); !more) return more;
    }
    append_file_record(file_record::End{is_last}, bytes);
    size_t at = 0;
    FileRecordReader reader([&](std::span<char> into) -> Result<size_t> {
      const size_t n = std::min(into.size(), bytes.size() - at);
      std::memcpy(into.data(), bytes.data() + at, n);
      at += n;
      return n;
    });
    for (;;) {
      const auto record = reader.next();
      if (!record) return failure(record.error());
      if (Status applied = builder_->apply(*record); !applied) return failure(applied.error());
      if (std::holds_alternative<file_record::End>(*record)) return *sent;
    }
  }

  Result<uint64_t> send_last(const SentContent::Sink& sink) {
    if (!segments_) return rounds_->send_last(getpid(), sink);
    if (const auto sent = segments_->send_last(sink); !sent) return sent;
    auto deleted = segments_->deleted_files();
    if (!deleted) return failure(deleted.error());
    return rounds_->send_last(getpid(), sink, std::move(*deleted));
  }

  uint64_t sent(bool is_last = false) {
    const auto bytes = send(is_last);
    EXPECT_TRUE(bytes) << bytes.error().message;
    return bytes.value_or(0);
  }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(from_ / name, std::ios::binary) << text;
  }

  // Returns a line for each file, with everything that must be equal in the original and the copy.
  static std::vector<std::string> describe(const fs::path& top) {
    std::vector<std::string> lines;
    std::map<ino_t, std::string> first;
    std::vector<fs::path> paths = {top};
    for (const auto& entry : fs::recursive_directory_iterator(top)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) {
      struct stat status {};
      EXPECT_EQ(lstat(path.c_str(), &status), 0);
      std::string content;
      if (S_ISREG(status.st_mode)) content = read_whole_file(path).value_or("unreadable");
      if (S_ISLNK(status.st_mode)) content = fs::read_symlink(path);
      std::string value(100, '\0');
      const ssize_t size = lgetxattr(path.c_str(), "trusted.test", value.data(), value.size());
      value.resize(std::max<ssize_t>(size, 0));
      const std::string same = first.emplace(status.st_ino, path).first->second;
      const bool is_file = S_ISREG(status.st_mode);
      lines.push_back(fmt::format(
          "{} {:o} {} {} {} {} {} {}.{} {}.{} {} {} {}", path.lexically_relative(top).string(),
          status.st_mode, status.st_uid, status.st_gid, is_file ? status.st_nlink : 0,
          is_file ? status.st_size : 0, is_file ? status.st_blocks : 0, status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec, path == top ? 0 : status.st_rdev, value,
          fs::path(same).lexically_relative(top).string(), std::hash<std::string>()(content),
          content.substr(0, 20)));
    }
    return lines;
  }

  void expect_same() {
    EXPECT_THAT(describe(built_ / "0"), testing::ElementsAreArray(describe(from_)));
  }

  fs::path top_;
  fs::path from_;
  fs::path built_;
  uint64_t parts_ = 0;
  std::unique_ptr<SegmentRounds> segments_;  // null: the test sends no deleted files
  std::unique_ptr<FileRounds> rounds_;
  std::unique_ptr<TmpfsBuilder> builder_;
};

TEST_F(FileRoundsTest, EveryKindOfFileIsBuiltAgain) {
  fs::create_directories(from_ / "directory/below");
  write("directory/below/file", "content");
  fs::create_hard_link(from_ / "directory/below/file", from_ / "link");
  write("empty", "");
  ASSERT_EQ(truncate((from_ / "empty").c_str(), 0), 0);
  write("sparse", std::string(5000, 'x'));
  ASSERT_EQ(truncate((from_ / "sparse").c_str(), 10 << 20), 0);
  fs::create_symlink("/no/where", from_ / "symbolic link");
  fs::create_hard_link(from_ / "symbolic link", from_ / "link of a link");
  ASSERT_EQ(mkfifo((from_ / "fifo").c_str(), 0620), 0);
  ASSERT_EQ(mknod((from_ / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
  ASSERT_EQ(mknod((from_ / "socket").c_str(), S_IFSOCK | 0755, 0), 0);
  ASSERT_EQ(chown((from_ / "link").c_str(), 7, 8), 0);
  ASSERT_EQ(chmod((from_ / "link").c_str(), 06751), 0);
  ASSERT_EQ(lchown((from_ / "symbolic link").c_str(), 9, 10), 0);
  ASSERT_EQ(lchown((from_ / "fifo").c_str(), 11, 12), 0);
  ASSERT_EQ(chmod((from_ / "directory").c_str(), 03777), 0);
  ASSERT_EQ(setxattr((from_ / "link").c_str(), "trusted.test", "value", 5, 0), 0);
  const timespec times[] = {{-5, 6}, {1, 2}};
  ASSERT_EQ(utimensat(AT_FDCWD, (from_ / "link").c_str(), times, 0), 0);
  ASSERT_EQ(utimensat(AT_FDCWD, (from_ / "directory").c_str(), times, 0), 0);
  begin();
  EXPECT_EQ(sent(), 7U + 8192U);  // whole pages, where the rest is a hole
  sent(true);
  EXPECT_TRUE(builder_->is_complete());
  EXPECT_TRUE(is_tmpfs_built(built_));
  expect_same();
}

TEST_F(FileRoundsTest, OnlyWhatHasChangedIsSentAgain) {
  write("large", std::string(1 << 20, 'x'));
  write("other", std::string(1 << 20, 'y'));
  begin();
  EXPECT_EQ(sent(), 2U << 20);
  {
    std::fstream file(from_ / "large", std::ios::in | std::ios::out);
    file.seekp(500'000);
    file << "z";
  }
  EXPECT_EQ(sent(), kFilePageBytes);
  fs::rename(from_ / "large", from_ / "renamed");
  EXPECT_EQ(sent(true), 0U);
  expect_same();
}

TEST_F(FileRoundsTest, FilesThatShrinkGrowAndEndAreFollowed) {
  for (const char* name : {"shrinks", "grows", "is punched", "ends", "is replaced"}) {
    write(name, std::string(20'000, 'a'));
  }
  begin();
  sent();
  ASSERT_EQ(truncate((from_ / "shrinks").c_str(), 5000), 0);
  ASSERT_EQ(truncate((from_ / "grows").c_str(), 50), 0);
  ASSERT_EQ(truncate((from_ / "grows").c_str(), 40'000), 0);
  {
    const UniqueFd file(open((from_ / "is punched").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192), 0);
  }
  fs::remove(from_ / "ends");
  fs::remove(from_ / "is replaced");
  fs::create_directory(from_ / "is replaced");
  sent();
  ASSERT_EQ(truncate((from_ / "shrinks").c_str(), 10'000), 0);
  write("is new", "new");
  sent(true);
  expect_same();
}

// The first write of a page through a mapping changes the times if the page was not read before.
// Later writes do not.
TEST_F(FileRoundsTest, WritesThroughAMappingAreSent) {
  constexpr size_t kPages = 64;
  write("mapped", std::string(kPages * kFilePageBytes, 'a'));
  const UniqueFd file(open((from_ / "mapped").c_str(), O_RDWR | O_CLOEXEC));
  auto* const memory = static_cast<char*>(
      mmap(nullptr, kPages * kFilePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 'b', kPages * kFilePageBytes);
  begin();
  sent();
  std::mt19937 random(1);
  for (int round = 0; round < 5; ++round) {
    struct stat before {};
    struct stat after {};
    ASSERT_EQ(fstat(file.get(), &before), 0);
    for (int i = 0; i < 10; ++i) {
      memory[random() % (kPages * kFilePageBytes)] = static_cast<char>(random());
    }
    ASSERT_EQ(fstat(file.get(), &after), 0);
    EXPECT_EQ(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec) << "the times have changed";
    EXPECT_LE(sent(), 10 * kFilePageBytes);
  }
  memory[12345] = 'c';
  munmap(memory, kPages * kFilePageBytes);  // the last look has seen the mapping
  sent(true);
  expect_same();
}

// A program that has read a page through a mapping writes to it without a fault, so no time
// changes. The mapping exists only between two looks.
TEST_F(FileRoundsTest, WritesThroughAMappingThatNoLookHasSeenAreSent) {
  const auto write_unseen = [&](int file) {
    void* const mapped = mmap(nullptr, kFilePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* const memory = static_cast<volatile char*>(mapped);
    struct stat before {};
    struct stat after {};
    ASSERT_EQ(fstat(file, &before), 0);
    memory[7] = static_cast<char>(memory[9] + 1);
    munmap(mapped, kFilePageBytes);
    ASSERT_EQ(fstat(file, &after), 0);
    EXPECT_EQ(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec) << "the times have changed";
  };
  write("closed", std::string(kFilePageBytes, 'a'));
  write("stays open", std::string(kFilePageBytes, 'a'));
  const UniqueFd open_file(open((from_ / "stays open").c_str(), O_RDWR | O_CLOEXEC));
  begin();
  sent();
  usleep(100'000);  // the times of both files are older than the next look
  sent();
  write_unseen(open_file.get());
  write_unseen(UniqueFd(open((from_ / "closed").c_str(), O_RDWR | O_CLOEXEC)).get());
  EXPECT_EQ(sent(), 2 * kFilePageBytes);
  sent(true);
  expect_same();
}

TEST_F(FileRoundsTest, ADeletedFileThatIsOpenHasANameUntilItsMountEnds) {
  begin();
  write("stays", "text");
  std::string text(size_t{2} << 20, 'a');
  write("gone", text);
  const UniqueFd file(open((from_ / "gone").c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  ASSERT_EQ(fstat(file.get(), &status), 0);
  segments_ = std::make_unique<SegmentRounds>(TmpfsNumbers{{status.st_dev, 0}});
  sent();
  EXPECT_EQ(segments_->list_of_inodes(), "") << "it has a name";
  fs::remove(from_ / "gone");
  sent();
  EXPECT_EQ(segments_->list_of_inodes(), fmt::format("{} {}\n", status.st_ino, status.st_dev));
  text[5] = 'b';
  ASSERT_EQ(pwrite(file.get(), "b", 1, 5), 1);
  sent(true);
  const fs::path root = built_ / "0";
  EXPECT_EQ(read_whole_file(root / fmt::format(".ppmr-deleted-{}", status.st_ino)).value_or(""),
            text);
  const UniqueFd mount(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  remove_built_tmpfs(built_);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/self/fd/{}", mount.get()))) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::ElementsAre("stays"));
}

TEST_F(FileRoundsTest, TheLimitsOfTheOriginalHoldAtTheEnd) {
  write("file", std::string(8000, 'x'));
  begin("rw,seclabel,size=16k,mode=700");
  sent(true);
  const std::string more(100'000, 'y');
  const UniqueFd file(open((built_ / "0/more").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_LT(::write(file.get(), more.data(), more.size()), 16'384);
}

TEST_F(FileRoundsTest, FilesThatDoNotFitAreRefused) {
  write("file", std::string(100'000, 'x'));
  begin("rw,size=16k");
  const auto last = send(true);
  ASSERT_FALSE(last);
  EXPECT_THAT(last.error().message, testing::HasSubstr("size=16k"));
  EXPECT_FALSE(is_tmpfs_built(built_));
}

// Otherwise files would be missing at the target.
TEST_F(FileRoundsTest, ADirectoryThatCannotBeReadIsNotTakenForAnEmptyOne) {
  write("file", "content");
  begin();
  const ReaddirFault fault({}, EIO);
  const auto sent = send();
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().errno_value, EIO);
  EXPECT_NE(sent.error().message.find(from_.string()), std::string::npos) << sent.error().message;
}

TEST_F(FileRoundsTest, RecordsInASenselessOrderAreRefused) {
  using namespace file_record;
  const Entry file = {.name = "a", .file = 1, .attributes = {.mode = S_IFREG}};
  const std::vector<std::vector<FileRecord>> cases = {
      {Tmpfs{0, ""}},
      {Part{1}},
      {Part{0}, Part{1}},
      {Part{0}, Data{0, 1, 0, "x"}},
      {Part{0}, file},
      {Part{0}, Leave{}},
      {Part{0}, Tmpfs{0, ""}, Tmpfs{0, ""}},
      {Part{0}, Tmpfs{0, ""}, End{true}},
      {Part{0}, Tmpfs{0, ""}, Tree{0, {.mode = S_IFDIR}}, Link{"b", 1}},
      {Part{0}, Tmpfs{0, ""}, Tree{0, {.mode = S_IFDIR}}, file, file},
      {Part{0}, Tmpfs{0, ""}, Tree{0, {.mode = S_IFDIR}}, Tree{0, {.mode = S_IFDIR}}},
      {Part{0}, Tmpfs{0, ""}, Tree{0, {.mode = S_IFDIR}}, Leave{}, Data{0, 1, 0, "x"}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    TmpfsBuilder builder(built_);
    Status applied;
    for (size_t j = 0; j < cases[i].size(); ++j) {
      applied = builder.apply(cases[i][j]);
      EXPECT_EQ(applied.has_value(), j + 1 < cases[i].size()) << i << " " << j;
    }
    remove_built_tmpfs(built_);
  }
}

TEST(TmpfsOptions, UnknownOptionsAreLeftOut) {
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(options_of_tmpfs("rw,seclabel,size=65536k,mode=755,inode64,x=y"),
              ElementsAre(Pair("size", "65536k"), Pair("mode", "755"), Pair("inode64", "")));
  EXPECT_TRUE(options_of_tmpfs("").empty());
}

TEST(TmpfsLines, OnlyWholeFileSystemsCount) {
  const auto lines = parse_tmpfs_lines(
      "36 35 0:42 / /tmp rw,nosuid shared:1 - tmpfs tmpfs rw,size=4k\n"
      "37 35 0:43 /sub /mnt rw - tmpfs tmpfs rw\n"
      "38 35 0:44 / /a\\040b rw - tmpfs none rw\n"
      "39 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
      "40 35 0:45 / /x rw - tmpfs\n"
      "nonsense\n\n");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].mount_id, 36U);
  EXPECT_EQ(lines[0].device, makedev(0, 42));
  EXPECT_EQ(lines[0].options, "rw,size=4k");
  EXPECT_EQ(lines[1].mountpoint, "/a b");
}

}  // namespace
}  // namespace ppmr
