// Maps a whole memfd. The bytes live as long as the mapping, even if every other process that has
// the file ends. Core dumps do not contain them, because images of processes hold secrets.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Threads: one thread at a time may move or destroy the object.
class MappedFile {
 public:
  enum class Access { kRead, kReadAndWrite };
  // Errors: those of mmap(2).
  static Result<MappedFile> map(const UniqueFd& memfd, Access access = Access::kRead) {
    struct stat found {};
    if (::fstat(memfd.get(), &found) != 0) {
      return system_failure("read the size of", "shared memory");
    }
    MappedFile mapped;
    const auto size = static_cast<size_t>(found.st_size);
    if (size == 0) return mapped;
    const int protection = PROT_READ | (access == Access::kReadAndWrite ? PROT_WRITE : 0);
    void* const start = ::mmap(nullptr, size, protection, MAP_SHARED, memfd.get(), 0);
    if (start == MAP_FAILED) {
      return system_failure("map", std::to_string(size) + " bytes of shared memory");
    }
    ::madvise(start, size, MADV_DONTDUMP);
    mapped.bytes_ = {static_cast<std::byte*>(start), size};
    return mapped;
  }

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::span<std::byte> writable_bytes() const { return bytes_; }  // only with kReadAndWrite

 private:
  std::span<std::byte> bytes_;
};

}  // namespace ppmr
