// Parts of the cases: descriptors, contents in which every word depends on its offset, and a file
// with its model.
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

// An open descriptor. close() returns the error of close(2), because this error is part of the
// mounts' contract.
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
  // Closes the descriptor. Returns 0 or the errno of close(2); the descriptor is closed in both
  // cases.
  int close();

 private:
  int fd_ = -1;
};

// On failure returns Fd{} and sets errno.
Fd open_file(const std::string& path, int flags, mode_t mode = 0644);

// Returns 0, or the errno of a call that returned -1: EXPECT_EQ(errno_of(mkdir(...)), EEXIST).
template <typename Number>
int errno_of(Number returned) {
  return returned == static_cast<Number>(-1) ? errno : 0;
}
std::string errno_name(int number);

// Fills `out` with the `size` bytes at `offset` (a multiple of 8) of the endless stream `seed`.
void fill_pattern(char* out, size_t size, uint64_t seed, uint64_t offset = 0);
std::string pattern(size_t size, uint64_t seed);

// Writes all of `bytes` in calls of at most `piece` bytes. A short write is a failure.
testing::AssertionResult write_whole(const Fd& fd, std::string_view bytes, size_t piece = kMiB);
testing::AssertionResult pwrite_whole(const Fd& fd, std::string_view bytes, uint64_t offset);
// Opens, writes and closes the file; every step must succeed.
testing::AssertionResult write_file(const std::string& path, std::string_view bytes,
                                    size_t piece = kMiB);

// Checks that the file's st_size and its bytes up to EOF equal `expected`. A failure names the
// first difference.
testing::AssertionResult reads_as(const std::string& path, std::string_view expected);
testing::AssertionResult same_bytes(std::string_view got, std::string_view expected);

// Checks with lstat(2).
testing::AssertionResult is_absent(const std::string& path);
testing::AssertionResult is_present(const std::string& path);

// Returns the names in a directory without "." and "..", unsorted; duplicates stay.
std::vector<std::string> list_directory(const std::string& path);

// A file under test and its model: the bytes that it must contain. Every step changes both.
class ShadowFile {
 public:
  // `held` is the current content of the file.
  explicit ShadowFile(Fd fd, std::string held = {}) : fd_(std::move(fd)), held_(std::move(held)) {}

  testing::AssertionResult write_at(uint64_t offset, size_t size);
  testing::AssertionResult truncate(uint64_t size);
  testing::AssertionResult punch(uint64_t offset, uint64_t size);
  testing::AssertionResult read_back() const;  // reads through the same descriptor
  int close() { return fd_.close(); }

  const Fd& fd() const { return fd_; }
  const std::string& held() const { return held_; }

 private:
  Fd fd_;
  std::string held_;
  uint64_t writes_ = 0;  // number of writes, and seed: each write has other bytes
};

// A child process that runs `body` and exits with its return value (0: success). The destructor
// waits for it.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child(const Child&) = delete;
  ~Child();
  // Waits for the child. Returns the exit code, or 128 + n after signal n.
  int wait();

 private:
  pid_t pid_;
};

}  // namespace ppmr::mount_cases
