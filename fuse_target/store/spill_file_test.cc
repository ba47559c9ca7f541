#include "fuse_target/store/spill_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

namespace ppmr {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

std::vector<std::byte> pattern(size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class SpillFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::canonical(::testing::TempDir()) / "spill_file_test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
    directory_ = std::move(SpillDirectory::open(path_).value());
    file_ = directory_->create_file().value();
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  // Returns the file on the disk. It has no name, so this function finds it among the descriptors
  // of this process.
  UniqueFd disk_file() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (!target.starts_with(path_ + "/")) continue;
      UniqueFd file(::open(entry.path().c_str(), O_RDWR));
      struct stat found {};
      // Skips the empty file that the directory keeps open.
      if (file && ::fstat(file.get(), &found) == 0 && found.st_size > 0) return file;
    }
    return UniqueFd();
  }
  int read_error(uint64_t offset, size_t length) const {
    std::vector<std::byte> bytes(length);
    const Status read = file_->read(offset, bytes);
    return read ? 0 : read.error().errno_value;
  }

  std::string path_;
  std::unique_ptr<SpillDirectory> directory_;
  std::shared_ptr<SpillFile> file_;
};

TEST_F(SpillFileTest, DetectsBytesThatChangedOnTheDisk) {
  const auto bytes = pattern(100'000, 1);
  ASSERT_TRUE(file_->write(12'345, bytes));
  const UniqueFd disk = disk_file();
  ASSERT_TRUE(disk);
  const char wrong = static_cast<char>(~static_cast<unsigned char>(bytes[50'000]));
  ASSERT_EQ(::pwrite(disk.get(), &wrong, 1, 12'345 + 50'000), 1);
  EXPECT_EQ(read_error(12'345, bytes.size()), EIO);
  EXPECT_EQ(read_error(12'345 + 50'000, 1), EIO);
  EXPECT_EQ(read_error(12'345, 10'000), 0) << "only the damaged part is lost";
}

TEST_F(SpillFileTest, DiskHasNoByteInPlainText) {
  const std::string secret = "the secret of a process, which must not be on the disk";
  std::vector<std::byte> bytes = pattern(200'000, 1);
  for (size_t at = 0; at + secret.size() < bytes.size(); at += 1000) {
    std::memcpy(bytes.data() + at, secret.data(), secret.size());
  }
  ASSERT_TRUE(file_->write(777, bytes));
  const UniqueFd disk = disk_file();
  ASSERT_TRUE(disk);
  std::string stored(300'000, '\0');
  const ssize_t length = ::pread(disk.get(), stored.data(), stored.size(), 0);
  ASSERT_GE(length, 200'000);
  EXPECT_EQ(stored.find(secret.substr(0, 16)), std::string::npos);
  EXPECT_EQ(read_error(777, bytes.size()), 0);
}

TEST_F(SpillFileTest, DetectsAFileThatWasCutShort) {
  ASSERT_TRUE(file_->write(0, pattern(100'000, 1)));
  const UniqueFd disk = disk_file();
  ASSERT_TRUE(disk);
  ASSERT_EQ(::ftruncate(disk.get(), 8192), 0);
  EXPECT_EQ(read_error(0, 100'000), EIO);
  EXPECT_EQ(read_error(50'000, 10), EIO);
  EXPECT_EQ(read_error(0, 8192), 0);
}

TEST_F(SpillFileTest, RandomWritesAndHolesReadBackTheSameBytesAsAModel) {
  constexpr size_t kSize = 5 * kMiB;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    file_ = directory_->create_file().value();
    std::mt19937 random(seed);
    std::vector<std::byte> model(kSize);
    for (int step = 0; step < 60; ++step) {
      const size_t offset = random() % kSize;
      const size_t length =
          std::min<size_t>(kSize - offset, 1 + random() % (random() % 2 == 0 ? kMiB : 5000));
      if (random() % 4 == 0) {
        file_->punch_hole(offset, length);
        // The bytes of a hole are undefined until they are written again.
        ASSERT_TRUE(file_->write(offset, std::vector<std::byte>(length)));
        std::fill_n(model.begin() + static_cast<ptrdiff_t>(offset), length, std::byte{0});
        continue;
      }
      const auto bytes = pattern(length, static_cast<uint32_t>(random()));
      ASSERT_TRUE(file_->write(offset, bytes)) << "seed " << seed;
      std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<ptrdiff_t>(offset));
      const size_t begin = random() % kSize;
      std::vector<std::byte> seen(std::min<size_t>(kSize - begin, 1 + random() % kMiB));
      ASSERT_TRUE(file_->read(begin, seen)) << "seed " << seed;
      ASSERT_TRUE(
          std::equal(seen.begin(), seen.end(), model.begin() + static_cast<ptrdiff_t>(begin)))
          << "seed " << seed;
    }
  }
}

TEST_F(SpillFileTest, PunchedHoleFreesDiskSpace) {
  ASSERT_TRUE(file_->write(0, pattern(4 * kMiB, 1)));
  EXPECT_GE(directory_->spilled_bytes(), 4 * kMiB);
  file_->punch_hole(100, 3 * kMiB);
  EXPECT_LE(directory_->spilled_bytes(), 2 * kMiB);
  file_.reset();
  EXPECT_EQ(directory_->spilled_bytes(), 0u);
}

TEST_F(SpillFileTest, RefusesBytesBeyondTheLimitOfTheDirectory) {
  auto limited = SpillDirectory::open(
      path_, [this] { return create_unnamed_file(path_); }, 2 * kMiB);
  ASSERT_TRUE(limited);
  const auto one = (*limited)->create_file().value();
  const auto two = (*limited)->create_file().value();
  EXPECT_EQ((*limited)->free_bytes(), 2 * kMiB);
  ASSERT_TRUE(one->write(0, pattern(kMiB, 1)));
  ASSERT_TRUE(two->write(0, pattern(kMiB, 2)));
  EXPECT_EQ((*limited)->free_bytes(), 0);
  const Status refused = two->write(kMiB, pattern(4 * kKiB, 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, ENOSPC);
  EXPECT_NE(refused.error().message.find("--spill-limit"), std::string::npos);
  one->punch_hole(0, kMiB);
  EXPECT_TRUE(two->write(kMiB, pattern(4 * kKiB, 3)));
}

TEST_F(SpillFileTest, SupportsConcurrentWritersOfOneBlock) {
  constexpr size_t kPart = 1000;  // so several parts share a block
  constexpr size_t kParts = 400;
  const auto bytes = pattern(kPart * kParts, 1);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < kParts; i += 2) {
        EXPECT_TRUE(file_->write(i * kPart, std::span(bytes).subspan(i * kPart, kPart)));
      }
    });
  }
  threads.emplace_back([&] {
    std::vector<std::byte> seen(kPart * kParts);
    for (int i = 0; i < 50; ++i) {
      const size_t written = directory_->spilled_bytes() > 0 ? kPart : 0;
      EXPECT_TRUE(file_->read(0, std::span(seen).first(written)));
    }
  });
  for (auto& thread : threads) thread.join();
  std::vector<std::byte> seen(bytes.size());
  ASSERT_TRUE(file_->read(0, seen));
  EXPECT_TRUE(seen == bytes);
}

}  // namespace
}  // namespace ppmr
