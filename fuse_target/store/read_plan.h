// The layout of the answer to a read: a list of pieces, each a part of a block, zeros, or a part of
// a file on the disk. A thread makes the plan under the file's mutex, which takes little time
// because it copies no bytes. It then uses the plan without the mutex.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "fuse_target/store/disk_bytes.h"
#include "fuse_target/store/store_memory.h"

namespace ppmr {

// Threads: one at a time. A thread reuses its plan, so planning does not allocate.
class ReadPlan {
 public:
  void add_block(const BlockRef& block, size_t offset_in_block, size_t length);
  void add_zeros(size_t length);
  // All parts of a plan are in one file.
  void add_spilled(const std::shared_ptr<const DiskBytes>& file, uint64_t offset, size_t length);
  void clear();

  // Reads the spilled pieces from the disk. If there are too many pieces for one writev(2), copies
  // all pieces into one buffer. Call it before buffers(). Errors: those of DiskBytes::read().
  Status make_ready();

  std::span<const iovec> buffers() const { return buffers_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Spilled {
    size_t buffer = 0;
    uint64_t offset = 0;
  };

  std::vector<iovec> buffers_;
  std::vector<BlockRef> blocks_;  // references that keep the memory until clear()
  std::vector<Spilled> spilled_;
  std::shared_ptr<const DiskBytes> spill_file_;
  std::vector<std::byte> copied_;
  size_t size_bytes_ = 0;
};

}  // namespace ppmr
