#include "tests/mount_cases/files.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace ppmr::mount_cases {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

int Fd::close() {
  if (fd_ < 0) return 0;
  // close(2) of a short file does not wait for the target, but the readers of the cases read at
  // once.
  (void)::fsync(fd_);
  return errno_of(::close(std::exchange(fd_, -1)));
}

Fd open_file(const std::string& path, int flags, mode_t mode) {
  return Fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
}

std::string errno_name(int number) {
  const char* name = ::strerrorname_np(number);
  return name == nullptr ? std::to_string(number) : name;
}

void fill_pattern(char* out, size_t size, uint64_t seed, uint64_t offset) {
  uint64_t index = offset / 8;
  const uint64_t start = seed * 0xD1B54A32D192ED03u;
  for (size_t done = 0; done < size; done += 8, ++index) {
    uint64_t word = (index + start) * 0x9E3779B97F4A7C15u;
    word ^= word >> 29;
    std::memcpy(out + done, &word, std::min<size_t>(8, size - done));
  }
}

std::string pattern(size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  fill_pattern(bytes.data(), size, seed);
  return bytes;
}

AssertionResult write_whole(const Fd& fd, std::string_view bytes, size_t piece) {
  for (size_t done = 0; done < bytes.size();) {
    const size_t now = std::min(piece, bytes.size() - done);
    const ssize_t count = ::write(fd.get(), bytes.data() + done, now);
    if (count < 0)
      return AssertionFailure() << "write of " << now << " bytes at " << done << ": "
                                << errno_name(errno);
    if (static_cast<size_t>(count) != now) {
      return AssertionFailure() << "write at " << done << " took " << count << " of " << now
                                << " bytes";
    }
    done += now;
  }
  return AssertionSuccess();
}

AssertionResult pwrite_whole(const Fd& fd, std::string_view bytes, uint64_t offset) {
  const ssize_t count = ::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (count < 0)
    return AssertionFailure() << "pwrite of " << bytes.size() << " bytes at " << offset << ": "
                              << errno_name(errno);
  if (static_cast<size_t>(count) != bytes.size()) {
    return AssertionFailure() << "pwrite at " << offset << " took " << count << " of "
                              << bytes.size() << " bytes";
  }
  return AssertionSuccess();
}

AssertionResult write_file(const std::string& path, std::string_view bytes, size_t piece) {
  Fd fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!fd.ok())
    return AssertionFailure() << "open " << path << " for writing: " << errno_name(errno);
  if (AssertionResult wrote = write_whole(fd, bytes, piece); !wrote) return wrote << " of " << path;
  if (const int error = fd.close(); error != 0)
    return AssertionFailure() << "close " << path << ": " << errno_name(error);
  return AssertionSuccess();
}

AssertionResult same_bytes(std::string_view got, std::string_view expected) {
  if (got == expected) return AssertionSuccess();
  const auto [at, other] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  return AssertionFailure() << "got " << got.size() << " bytes, expected " << expected.size()
                            << ", first difference at offset " << (at - got.begin());
}

AssertionResult reads_as(const std::string& path, std::string_view expected) {
  Fd fd = open_file(path, O_RDONLY);
  if (!fd.ok())
    return AssertionFailure() << "open " << path << " for reading: " << errno_name(errno);
  struct stat seen {};
  if (::fstat(fd.get(), &seen) != 0)
    return AssertionFailure() << "fstat " << path << ": " << errno_name(errno);
  if (static_cast<uint64_t>(seen.st_size) != expected.size()) {
    return AssertionFailure() << path << " has st_size " << seen.st_size << ", expected "
                              << expected.size();
  }
  std::string got;
  std::vector<char> buffer(kMiB);
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0)
      return AssertionFailure() << "read " << path << " at " << got.size() << ": "
                                << errno_name(errno);
    if (count == 0) break;
    got.append(buffer.data(), static_cast<size_t>(count));
  }
  return same_bytes(got, expected)
         << (got == expected ? "" : " in ") << (got == expected ? "" : path);
}

AssertionResult is_absent(const std::string& path) {
  struct stat seen {};
  if (::lstat(path.c_str(), &seen) == 0) return AssertionFailure() << path << " exists";
  if (errno != ENOENT)
    return AssertionFailure() << "lstat " << path << ": " << errno_name(errno)
                              << ", expected ENOENT";
  return AssertionSuccess();
}

AssertionResult is_present(const std::string& path) {
  struct stat seen {};
  if (::lstat(path.c_str(), &seen) != 0)
    return AssertionFailure() << "lstat " << path << ": " << errno_name(errno);
  return AssertionSuccess();
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (directory == nullptr) {
    ADD_FAILURE() << "opendir " << path << ": " << errno_name(errno);
    return names;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  EXPECT_EQ(errno, 0) << "readdir " << path;
  return names;
}

AssertionResult ShadowFile::write_at(uint64_t offset, size_t size) {
  const std::string bytes = pattern(size, ++writes_);
  if (held_.size() < offset + size) held_.resize(offset + size, '\0');
  held_.replace(offset, size, bytes);
  return pwrite_whole(fd_, bytes, offset);
}

AssertionResult ShadowFile::truncate(uint64_t size) {
  held_.resize(size, '\0');
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
    return AssertionFailure() << "ftruncate to " << size << ": " << errno_name(errno);
  }
  return AssertionSuccess();
}

AssertionResult ShadowFile::punch(uint64_t offset, uint64_t size) {
  if (offset < held_.size()) {
    const uint64_t end = std::min<uint64_t>(held_.size(), offset + size);
    std::fill(held_.begin() + static_cast<ptrdiff_t>(offset),
              held_.begin() + static_cast<ptrdiff_t>(end), '\0');
  }
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(size)) != 0) {
    return AssertionFailure() << "punch hole of " << size << " at " << offset << ": "
                              << errno_name(errno);
  }
  return AssertionSuccess();
}

AssertionResult ShadowFile::read_back() const {
  std::string got(held_.size() + 1, '\0');
  size_t done = 0;
  while (true) {
    const ssize_t count =
        ::pread(fd_.get(), got.data() + done, got.size() - done, static_cast<off_t>(done));
    if (count < 0) return AssertionFailure() << "pread at " << done << ": " << errno_name(errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
    if (done == got.size())
      return AssertionFailure() << "file is longer than the " << held_.size()
                                << " bytes it should hold";
  }
  got.resize(done);
  return same_bytes(got, held_);
}

Child::Child(const std::function<int()>& body) : pid_(::fork()) {
  if (pid_ == 0) {
    ::alarm(120);  // ends the process if the mount hangs
    ::_exit(body());
  }
}

Child::~Child() { (void)wait(); }

int Child::wait() {
  if (pid_ < 0) return -1;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace ppmr::mount_cases
