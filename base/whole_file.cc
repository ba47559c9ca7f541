#include "base/whole_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ppmr {

Result<std::string> read_whole_file(const std::string& path) {
  // Most files are small, and each page of the string that is made for more costs a page fault.
  constexpr size_t kFirstReadBytes = size_t{4} << 10;
  constexpr size_t kReadBytesMax = size_t{1} << 20;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure("open", path);
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    const size_t read_bytes = std::clamp(before, kFirstReadBytes, kReadBytesMax);
    bytes.resize(before + read_bytes);
    const ssize_t n = read(file.get(), bytes.data() + before, read_bytes);
    if (n < 0 && errno != EINTR) return system_failure("read", path);
    bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return bytes;
  }
}

Status read_all(int file, std::span<std::byte> bytes, uint64_t offset, std::string_view object) {
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

Status write_all(int file, std::span<const std::byte> bytes, uint64_t offset,
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

Status write_whole_file(const std::string& path, std::string_view text, int flags, mode_t mode) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode));
  if (!file) return system_failure("create", path);
  Status written = write_all(file, std::as_bytes(std::span(text)), 0, path);
  if (!written && (flags & O_EXCL) != 0) unlink(path.c_str());
  return written;
}

Result<DirectoryEntries> list_directory(const std::string& path) {
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
