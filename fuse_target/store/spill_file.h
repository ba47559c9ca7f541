// Bytes for which there is no memory: a nameless file in the spill directory, sparse, with the same
// offsets as the image file that it helps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

// Threads: all members by any.
class SpillFile {
 public:
  SpillFile(UniqueFd file, std::shared_ptr<std::atomic<uint64_t>> spilled_bytes);
  ~SpillFile();

  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Errors: ENOSPC, EIO.
  Status write(uint64_t offset, std::span<const std::byte> bytes);
  // What was never written reads as zeros.
  Status read(uint64_t offset, std::span<std::byte> bytes) const;
  void punch_hole(uint64_t offset, uint64_t length_bytes);

 private:
  uint64_t disk_bytes() const;
  void count();

  const UniqueFd file_;
  const std::shared_ptr<std::atomic<uint64_t>> spilled_bytes_;  // of the whole directory
  std::atomic<uint64_t> counted_bytes_ = 0;                     // of it, ours
};

// Threads: all members by any.
class SpillDirectory {
 public:
  // Errors: ENOENT, ENOTDIR, EACCES ... of `path`; tried by making a file there.
  static Result<std::unique_ptr<SpillDirectory>> open(const std::string& path);

  Result<std::shared_ptr<SpillFile>> create_file() const;
  uint64_t spilled_bytes() const { return *spilled_bytes_; }
  uint64_t free_bytes() const;  // on the disk

 private:
  explicit SpillDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  const std::shared_ptr<std::atomic<uint64_t>> spilled_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace ppmr
