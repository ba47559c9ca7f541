// Bytes of images on a disk that is not trusted: encrypted blocks of 4 KiB, each with a checksum
// that a read verifies. Either a spill file, or a kept checkpoint (fuse_target/keep).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/block_cipher.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// The destructor may close a large file that has no name any more, which can take seconds: destroy
// the object without holding a lock. Threads: any thread may call any member.
class DiskBytes {
 public:
  static constexpr size_t kBlockBytes = BlockCipher::kBlockBytes;

  virtual ~DiskBytes() = default;

  // Reads from this offset of the file on the disk. Logs damage. Errors: EIO when the disk fails,
  // the file is too short, or a block differs from the written block.
  virtual Status read(uint64_t offset, std::span<std::byte> bytes) const = 0;
  // A borrower of these bytes uses the next two. open_for_reading() returns the file, open for
  // reading only. The second function returns a memfd with the BlockCipher::Key and the CRC32C
  // (uint32_t) of each block from `first_block` on; the CRC32C is 0 for blocks that were never
  // written. Errors: EMFILE and others of open(2) and memfd_create(2); EIO.
  virtual Result<UniqueFd> open_for_reading() const = 0;
  virtual Result<UniqueFd> copy_checksums(uint64_t first_block, size_t count) const = 0;
};

// Returns the memfd of DiskBytes::copy_checksums(). Errors: those of memfd_create(2) and pwrite(2).
Result<UniqueFd> create_checksum_file(const BlockCipher::Key& key,
                                      std::span<const uint32_t> checksums);

}  // namespace ppmr
