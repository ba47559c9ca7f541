// The places of a file's bytes in a kept checkpoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "fuse_target/store/disk_bytes.h"

namespace ppmr {

// Constant as soon as a file uses it. Threads: as for std::vector.
struct KeptBytes {
  struct Extent {
    uint64_t offset = 0;  // offset in the file; a multiple of the block size
    uint64_t length = 0;  // whole blocks, so the last extent may exceed the file
    uint64_t place = 0;   // offset in `bytes`; the next extent's place is at the end of this one
  };

  std::shared_ptr<const DiskBytes> bytes;
  std::vector<Extent> extents;  // by offset; what they leave out is zeros

  // Returns the extent that contains `offset`; null if there is none.
  const Extent* extent_at(uint64_t offset) const {
    const auto next =
        std::upper_bound(extents.begin(), extents.end(), offset,
                         [](uint64_t at, const Extent& extent) { return at < extent.offset; });
    if (next == extents.begin()) return nullptr;
    const Extent& extent = *std::prev(next);
    return offset - extent.offset < extent.length ? &extent : nullptr;
  }
};

}  // namespace ppmr
