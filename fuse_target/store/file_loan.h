// A part of a file that another process borrows: the places of its bytes, and references that keep
// the bytes there. The borrower maps the memory, so it has the bytes even if this process is
// killed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fuse_target/store/disk_bytes.h"
#include "fuse_target/store/store_memory.h"

namespace ppmr {

struct FileLoan {
  // Bytes of the file that are contiguous in one place.
  struct Piece {
    uint64_t offset = 0;  // offset in the file
    uint64_t length = 0;
    uint32_t place = 0;         // index in `regions`, or kOnDisk
    uint64_t place_offset = 0;  // offset in the region's memfd, or in the file on the disk
  };
  static constexpr uint32_t kOnDisk = UINT32_MAX;

  uint64_t size_bytes = 0;  // size of the whole file
  uint64_t end = 0;         // offset of the next part; size_bytes if this is the last part
  // Sorted by offset. The gaps, and the bytes from the last piece up to `end`, are zeros.
  std::vector<Piece> pieces;
  std::vector<int> regions;  // memfds of the store, which outlives the loan
  std::vector<BlockRef> blocks;
  std::shared_ptr<const DiskBytes> on_disk;  // null: no piece is on the disk
  StoreUse use;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.length;
    return sum;
  }
};

// The most bytes that one loan covers. The limit keeps the lists short, and the descriptors few
// enough for one message.
inline constexpr uint64_t kLoanSpanMaxBytes = uint64_t{1} << 30;
inline constexpr size_t kLoanRegionsMax = 200;
inline constexpr size_t kLoanPiecesMax = 8192;

}  // namespace ppmr
