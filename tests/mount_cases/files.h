// Small vocabulary of the cases: descriptors, contents that can be told apart by offset, and a file
// with its model beside it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ppmr::mount_cases {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// An open descriptor. close() hands out the error of close(2), because on these mounts it is part
// of the contract.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      (void)close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { (void)close(); }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // 0 or the errno of close(2). The descriptor is gone either way.
  int close();

 private:
  int fd_ = -1;
};

// Fails as Fd{} with errno set, like open(2).
Fd open_file(const std::string& path, int flags, mode_t mode = 0644);

// 0, or the errno of a call that answered -1: EXPECT_EQ(errno_of(mkdir(...)), EEXIST).
template <typename Number>
int errno_of(Number answer) {
  return answer == static_cast<Number>(-1) ? errno : 0;
}
std::string errno_name(int number);

// Fills `size` bytes as they stand at `offset` (a multiple of 8) in the endless stream number
// `seed`.
void fill_pattern(char* out, size_t size, uint64_t seed, uint64_t offset = 0);
std::string pattern(size_t size, uint64_t seed);

// Writes all of `bytes` in calls of at most `piece` bytes; a short count of a call is a failure.
testing::AssertionResult write_whole(const Fd& fd, std::string_view bytes, size_t piece = kMiB);
testing::AssertionResult pwrite_whole(const Fd& fd, std::string_view bytes, uint64_t offset);
// open, write, close; every step must succeed.
testing::AssertionResult write_file(const std::string& path, std::string_view bytes,
                                    size_t piece = kMiB);

// The file has exactly these bytes: st_size, read() to EOF, and each byte; names the first offset
// that differs.
testing::AssertionResult reads_as(const std::string& path, std::string_view expected);
testing::AssertionResult same_bytes(std::string_view got, std::string_view expected);

// lstat says that nothing has this name.
testing::AssertionResult is_absent(const std::string& path);
testing::AssertionResult is_present(const std::string& path);

// Names in a directory without "." and "..", unsorted, duplicates kept.
std::vector<std::string> list_directory(const std::string& path);

// A file under test and the bytes it should hold. Every step is applied to both.
class ShadowFile {
 public:
  // Takes an empty or an existing file whose contents are `held`.
  explicit ShadowFile(Fd fd, std::string held = {}) : fd_(std::move(fd)), held_(std::move(held)) {}

  testing::AssertionResult write_at(uint64_t offset, size_t size);
  testing::AssertionResult truncate(uint64_t size);
  testing::AssertionResult punch(uint64_t offset, uint64_t size);
  testing::AssertionResult read_back() const;  // at the same descriptor
  int close() { return fd_.close(); }

  const Fd& fd() const { return fd_; }
  const std::string& held() const { return held_; }

 private:
  Fd fd_;
  std::string held_;
  uint64_t writes_ = 0;  // seeds the bytes, so that each write differs from every other
};

// A child process that runs `body` and exits with what it returns (0 is good). Waited for at the
// latest by the destructor.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child(const Child&) = delete;
  ~Child();
  // The exit code; 128 + n for a death by signal n.
  int wait();

 private:
  pid_t pid_;
};

}  // namespace ppmr::mount_cases
