// A file of a sealed checkpoint whose bytes the target's daemon has lent to this process. They are
// in memory that both processes map, so reading them needs no system call, and they stay when the
// daemon is killed. Spilled bytes are read from the spill file, which this process has open, too.
//
// The loan ends with the object, or with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

// Threads: at() and size_bytes() by any, at the same time; everything else by one.
class BorrowedFile {
 public:
  // `scratch` of at() must be at least this long.
  static constexpr size_t kScratchMinBytes = 4096;

  // `file`: the path in the checkpoint; empty if the checkpoint is a file. Errors: those of call();
  // EBUSY if the checkpoint is not sealed, ENOENT, EISDIR, EOPNOTSUPP with --consume; ESTALE if the
  // file was replaced meanwhile; EPROTO.
  static Result<BorrowedFile> borrow(const std::string& control_socket,
                                     const std::string& checkpoint, const std::string& file);

  BorrowedFile(BorrowedFile&&) = default;
  BorrowedFile& operator=(BorrowedFile&&) = default;

  uint64_t size_bytes() const { return size_bytes_; }
  // The longest part that begins at `offset`, is in one place, and has at most `length_bytes`. Not
  // empty before the end of the file; empty from there on. A hole is a span of zeros. The span is
  // valid as long as this object, but spilled bytes are in `scratch`. Spilled blocks are verified.
  // Errors: EIO when a spilled block has changed or cannot be read.
  Result<std::span<const std::byte>> at(uint64_t offset, uint64_t length_bytes,
                                        std::span<std::byte> scratch) const;

 private:
  class Mapping {  // of a whole descriptor, for reading
   public:
    static Result<Mapping> create(const UniqueFd& memfd);
    Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Mapping& operator=(Mapping&& other) noexcept {
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Mapping();
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
    std::span<const std::byte> bytes_;
  };
  struct Spill {
    UniqueFd file;
    Mapping checksums;
    uint64_t first_block = 0;
  };
  struct Piece {
    uint64_t length = 0;
    const std::byte* data = nullptr;  // null: spilled, in spills_[spill] at the file's own offset
    size_t spill = 0;
  };
  struct Part;  // an answer of the daemon

  BorrowedFile() = default;
  Status add(Part part);
  Result<const std::byte*> map_region(const UniqueFd& memfd, uint64_t offset, uint64_t length);
  Result<std::span<const std::byte>> read_spilled(const Spill& spill, uint64_t offset,
                                                  uint64_t length_bytes,
                                                  std::span<std::byte> scratch) const;

  uint64_t size_bytes_ = 0;
  std::map<uint64_t, Piece> pieces_;     // by offset; holes are not in it
  std::map<uint64_t, Mapping> regions_;  // by inode of the memfd
  std::vector<Spill> spills_;
  std::vector<UniqueFd> loans_;  // our ends of the loans
};

}  // namespace ppmr
