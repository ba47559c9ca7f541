// A file of a checkpoint whose bytes the target's daemon has lent to this process. The bytes are in
// memory that both processes map. Reading needs no system call, and the bytes stay when the daemon
// is killed. This process also has the spill file open; it reads spilled bytes from there and
// decrypts them.
//
//   0         end_bytes()        size of the file
//   |  borrowed  |  not borrowed yet  |
//
// The loan ends when the object is destroyed or the process ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/block_cipher.h"
#include "base/mapped_file.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Threads: any thread may call at() and end_bytes() at any time; only one may call the other
// functions.
class BorrowedFile {
 public:
  // The shortest permitted `scratch` of at().
  static constexpr size_t kScratchMinBytes = 4096;

  // `file`: the path in the checkpoint; empty if the checkpoint is a file.
  BorrowedFile(std::string control_socket, std::string checkpoint, std::string file)
      : control_socket_(std::move(control_socket)),
        checkpoint_(std::move(checkpoint)),
        file_(std::move(file)) {}

  // Waits until the checkpoint is sealed. Errors: ETIMEDOUT; those of call(); EIO if the checkpoint
  // has failed.
  Status await_seal(std::chrono::milliseconds timeout) const;
  // Borrows all bytes of a sealed checkpoint that are not borrowed yet. Errors: those of call();
  // EBUSY if the checkpoint is not sealed, ENOENT, EISDIR, EIO if the checkpoint has failed,
  // EOPNOTSUPP with --consume; ESTALE if the file was replaced in the meantime; EPROTO.
  Status borrow_all();
  // Borrows the bytes that have arrived since the last call, up to the first byte that has not
  // arrived. The checkpoint need not be sealed. The source must not write the bytes again. Errors:
  // as borrow_all(), without EBUSY.
  Status borrow_arrived();

  uint64_t end_bytes() const { return end_bytes_; }
  // Returns the longest part that begins at `offset`, is in one place, and has at most
  // `length_bytes`. The part is empty only at or after end_bytes(). A hole is a span of zeros. The
  // span is valid as long as this object, but spilled bytes are in `scratch`. This function
  // verifies spilled blocks. Errors: EIO when a spilled block has changed or cannot be read.
  Result<std::span<const std::byte>> at(uint64_t offset, uint64_t length_bytes,
                                        std::span<std::byte> scratch) const;

 private:
  struct Spill {
    UniqueFd file;
    MappedFile checksums;  // behind the key in the spill file
    uint64_t first_block = 0;
    std::shared_ptr<const BlockCipher> cipher;

    uint64_t blocks() const;
    uint32_t checksum_of(uint64_t block) const;
  };
  struct Piece {
    uint64_t length = 0;
    const std::byte* data = nullptr;  // null: the bytes are in spills_[spill]
    size_t spill = 0;
    uint64_t spill_offset = 0;
  };
  struct Part;  // an answer of the daemon

  // Borrows one part of the file. Returns whether the part ends at the end of the file.
  Result<bool> borrow_part(bool arrived_only);
  Status add(Part part, uint64_t size_bytes);
  Result<const std::byte*> map_region(const UniqueFd& memfd, uint64_t offset, uint64_t length);
  Result<std::span<const std::byte>> read_spilled(const Spill& spill, uint64_t offset,
                                                  uint64_t length_bytes,
                                                  std::span<std::byte> scratch) const;

  const std::string control_socket_;
  const std::string checkpoint_;
  const std::string file_;
  int loan_ = -1;      // the daemon's number of the loan; -1: none yet
  UniqueFd loan_end_;  // this process's end of the loan's socket
  uint64_t inode_ = 0;
  std::map<uint64_t, MappedFile> regions_;  // key: the inode of the memfd

  std::atomic<uint64_t> end_bytes_ = 0;
  mutable SharedMutex mutex_;  // held for writing only while a part is added
  std::map<uint64_t, Piece> pieces_ PPMR_GUARDED_BY(mutex_);  // key: offset; holes are left out
  std::deque<Spill> spills_ PPMR_GUARDED_BY(mutex_);          // elements stay as they are
};

}  // namespace ppmr
