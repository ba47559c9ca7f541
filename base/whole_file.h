// Reads and writes whole files, and lists directories.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Reads a file of any kind to its end. Does not need the size of the file, which may be unknown for
// a file in a ppmr mount. Errors: the errors of the file system; the message names the file.
Result<std::string> read_whole_file(const std::string& path);

// Fills `bytes` from the file at `offset`. A read at the end of a file has no errno. `object`: the
// name of the file in the message. Errors: those of pread(2); EIO if the file ends too early.
Status read_all(int file, std::span<std::byte> bytes, uint64_t offset, std::string_view object);

// Writes all bytes at `offset`. A short write has no errno, so this function writes the rest, and
// then returns why that failed. `object`: the name of the file in the message. Errors: those of
// pwrite(2); EIO if it writes nothing.
Status write_all(int file, std::span<const std::byte> bytes, uint64_t offset,
                 std::string_view object);
inline Status write_all(const UniqueFd& file, std::span<const std::byte> bytes, uint64_t offset,
                        std::string_view object) {
  return write_all(file.get(), bytes, offset, object);
}

// Writes a file. `flags`, see open(2): O_EXCL or O_TRUNC; with O_SYNC, the text is durable on
// return, but the name is not (sync_directory()). With O_EXCL, a failure leaves no new file.
// Errors: the errors of the file system; the message names the file.
Status write_whole_file(const std::string& path, std::string_view text, int flags, mode_t mode);

using DirectoryEntries = std::vector<std::filesystem::directory_entry>;

// Returns the entries of the directory, in no order. Errors: those of opendir(3) and readdir(3). In
// contrast, a range-based loop over std::filesystem::directory_iterator throws if readdir(3) fails.
Result<DirectoryEntries> list_directory(const std::string& path);

}  // namespace ppmr
