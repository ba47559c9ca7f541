// A file of a checkpoint whose bytes the target's daemon has lent to this process. They are in
// memory that both processes map, so reading them needs no system call, and they stay when the
// daemon is killed. Spilled bytes are read from the spill file, which this process has open, too,
// and decrypted.
//
//   0         end_bytes()        size of the file
//   |  borrowed  |  not borrowed yet  |
//
// The loan ends with the object, or with the process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "base/block_cipher.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Threads: at() and end_bytes() by any, at any time; the others by one.
class BorrowedFile {
 public:
  // `scratch` of at() must be at least this long.
  static constexpr size_t kScratchMinBytes = 4096;

  // `file`: the path in the checkpoint; empty if the checkpoint is a file.
  BorrowedFile(std::string control_socket, std::string checkpoint, std::string file)
      : control_socket_(std::move(control_socket)),
        checkpoint_(std::move(checkpoint)),
        file_(std::move(file)) {}

  // Waits until the checkpoint is sealed. Errors: ETIMEDOUT; those of call(); EIO if it has failed.
  Status await_seal(std::chrono::milliseconds timeout) const;
  // Borrows what is not borrowed yet of a sealed checkpoint. Errors: those of call(); EBUSY if it
  // is not sealed, ENOENT, EISDIR, EIO if it has failed, EOPNOTSUPP with --consume; ESTALE if the
  // file was replaced meanwhile; EPROTO.
  Status borrow_all();
  // Borrows what has arrived since, up to the first byte that has not, also before the checkpoint
  // is sealed. The bytes must not be written again. Errors: as borrow_all(), without EBUSY.
  Status borrow_arrived();

  uint64_t end_bytes() const { return end_bytes_; }
  // The longest part that begins at `offset`, is in one place, and has at most `length_bytes`. Not
  // empty before end_bytes(); empty from there on. A hole is a span of zeros. The span is valid as
  // long as this object, but spilled bytes are in `scratch`. Spilled blocks are verified. Errors:
  // EIO when a spilled block has changed or cannot be read.
  Result<std::span<const std::byte>> at(uint64_t offset, uint64_t length_bytes,
                                        std::span<std::byte> scratch) const;

 private:
  struct Spill {
    UniqueFd file;
    MappedFile checksums;  // behind the key
    uint64_t first_block = 0;
    std::shared_ptr<const BlockCipher> cipher;

    uint64_t blocks() const;
    uint32_t checksum_of(uint64_t block) const;
  };
  struct Piece {
    uint64_t length = 0;
    const std::byte* data = nullptr;  // null: spilled, in spills_[spill] at the file's own offset
    size_t spill = 0;
  };
  struct Part;  // an answer of the daemon

  // Returns whether the part ends at the end of the file.
  Result<bool> borrow_part(bool arrived_only);
  Status add(Part part, uint64_t size_bytes);
  Result<const std::byte*> map_region(const UniqueFd& memfd, uint64_t offset, uint64_t length);
  Result<std::span<const std::byte>> read_spilled(const Spill& spill, uint64_t offset,
                                                  uint64_t length_bytes,
                                                  std::span<std::byte> scratch) const;

  const std::string control_socket_;
  const std::string checkpoint_;
  const std::string file_;
  int loan_ = -1;      // as the daemon numbers it; -1: none yet
  UniqueFd loan_end_;  // ours
  uint64_t inode_ = 0;
  std::map<uint64_t, MappedFile> regions_;  // by inode of the memfd

  std::atomic<uint64_t> end_bytes_ = 0;
  mutable std::shared_mutex mutex_;   // held for writing only while a part is added
  std::map<uint64_t, Piece> pieces_;  // by offset, without holes; guarded by mutex_
  std::deque<Spill> spills_;          // guarded by mutex_; elements stay as they are
};

}  // namespace ppmr
