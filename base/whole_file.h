// Reads and writes whole files, and lists directories.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Reads a file of any kind to its end. Does not need the size of the file, which may be unknown for
// a file in a ppmr mount. Errors: the errors of the file system; the message names the file.
inline Result<std::string> read_whole_file(const std::string& path) {
  constexpr size_t kReadBytes = size_t{1} << 20;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kReadBytes);
    const ssize_t n = read(file.get(), bytes.data() + before, kReadBytes);
    if (n < 0 && errno != EINTR) return system_failure("read", path);
    bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return bytes;
  }
}

// Fills `bytes` from the file at `offset`. A read at the end of a file has no errno. `object`: the
// name of the file in the message. Errors: those of pread(2); EIO if the file ends too early.
inline Status read_all(int file, std::span<std::byte> bytes, uint64_t offset,
                       std::string_view object) {
  while (!bytes.empty()) {
    const ssize_t n = pread(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_failure("read", object);
    if (n == 0) {
      return failure(EIO, std::string("read ").append(object).append(": it ends too early"));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

// Writes all bytes at `offset`. A short write has no errno, so this function writes the rest, and
// then returns why that failed. `object`: the name of the file in the message. Errors: those of
// pwrite(2); EIO if it writes nothing.
inline Status write_all(int file, std::span<const std::byte> bytes, uint64_t offset,
                        std::string_view object) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_failure("write", object, n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}
inline Status write_all(const UniqueFd& file, std::span<const std::byte> bytes, uint64_t offset,
                        std::string_view object) {
  return write_all(file.get(), bytes, offset, object);
}

// Writes a file. `flags`, see open(2): O_EXCL or O_TRUNC; with O_SYNC, the text is durable on
// return, but the name is not (sync_directory()). With O_EXCL, a failure leaves no new file.
// Errors: the errors of the file system; the message names the file.
inline Status write_whole_file(const std::string& path, std::string_view text, int flags,
                               mode_t mode) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode));
  if (!file) return system_failure("create", path);
  Status written = write_all(file, std::as_bytes(std::span(text)), 0, path);
  if (!written && (flags & O_EXCL) != 0) unlink(path.c_str());
  return written;
}

using DirectoryEntries = std::vector<std::filesystem::directory_entry>;

// Returns the entries of the directory, in no order. Errors: those of opendir(3) and readdir(3). In
// contrast, a range-based loop over std::filesystem::directory_iterator throws if readdir(3) fails.
inline Result<DirectoryEntries> list_directory(const std::string& path) {
  std::error_code error;
  DirectoryEntries entries;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(*entry);
  }
  if (error) return system_failure("list", path, error.value());
  return entries;
}

}  // namespace ppmr
