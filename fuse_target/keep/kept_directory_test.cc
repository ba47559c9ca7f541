#include "fuse_target/keep/kept_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/whole_file.h"
#include "fuse_target/keep/keep_fixture.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHoleBytes = 64 << 20;

SharedKey key_of(uint8_t seed) {
  SharedKey key{};
  key.fill(seed);
  return key;
}

class KeptDirectory : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/kept-directory-XXXXXX";
    top_ = mkdtemp(pattern);
    fs::create_directories(top_ + "/from/images/empty");
    put("/from/state", "a state");
    put("/from/images/core-1.img", bytes_from(7, 100'001));
    fs::create_symlink("core-1.img", top_ + "/from/images/link");
    const UniqueFd memory(open((top_ + "/from/memory").c_str(), O_WRONLY | O_CREAT, 0600));
    const std::string page = bytes_from(9, 4096);
    ASSERT_EQ(pwrite(memory.get(), page.data(), page.size(), kHoleBytes), 4096);
    ASSERT_EQ(ftruncate(memory.get(), 2 * kHoleBytes), 0);
  }
  void TearDown() override { fs::remove_all(top_); }

  void put(const std::string& name, const std::string& bytes) {
    const UniqueFd file(open((top_ + name).c_str(), O_WRONLY | O_CREAT, 0640));
    ASSERT_EQ(write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  Status write_it() {
    const UniqueFd file(open(path().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    return write_kept_directory(top_ + "/from", file, path(), "node-0", key_of(1));
  }
  Status read_it(const std::string& name = "node-0", uint8_t seed = 1) {
    const SharedKey key = key_of(seed);
    return read_kept_directory(UniqueFd(open(path().c_str(), O_RDONLY)), path(), name,
                               std::span(&key, 1), top_ + "/to");
  }
  std::string path() const { return top_ + "/file"; }

  std::string top_;
};

TEST_F(KeptDirectory, ComesBackAsItWas) {
  ASSERT_TRUE(write_it());
  EXPECT_LT(fs::file_size(path()), 1u << 20) << "holes take no room";
  const Status read = read_it();
  ASSERT_TRUE(read) << read.error().message;
  for (const char* name : {"/state", "/images/core-1.img", "/memory"}) {
    EXPECT_EQ(*read_whole_file(top_ + "/to" + name), *read_whole_file(top_ + "/from" + name));
  }
  EXPECT_EQ(fs::read_symlink(top_ + "/to/images/link"), "core-1.img");
  EXPECT_TRUE(fs::is_directory(top_ + "/to/images/empty"));
  struct stat memory {};
  ASSERT_EQ(stat((top_ + "/to/memory").c_str(), &memory), 0);
  EXPECT_LT(memory.st_blocks * 512, 1 << 20) << "holes stay holes";
}

TEST_F(KeptDirectory, ContentsAreNotReadableWithoutTheKey) {
  ASSERT_TRUE(write_it());
  EXPECT_EQ(read_whole_file(path())->find("a state"), std::string::npos);
  EXPECT_EQ(read_it("node-0", 2).error().errno_value, EKEYREJECTED);
}

TEST_F(KeptDirectory, FileOfAnotherNameIsRefused) {
  ASSERT_TRUE(write_it());
  EXPECT_EQ(read_it("node-1").error().errno_value, EBADMSG);
}

TEST_F(KeptDirectory, ChangedFileIsRefused) {
  ASSERT_TRUE(write_it());
  const UniqueFd file(open(path().c_str(), O_RDWR));
  ASSERT_EQ(pwrite(file.get(), "changed", 7, 9000), 7);
  EXPECT_FALSE(read_it());
}

TEST_F(KeptDirectory, DirectoryWithADeviceOrPipeIsRefused) {
  ASSERT_EQ(mkfifo((top_ + "/from/pipe").c_str(), 0600), 0);
  EXPECT_EQ(write_it().error().errno_value, EINVAL);
}

}  // namespace
}  // namespace ppmr
