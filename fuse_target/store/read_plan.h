// The answer to a read, laid out without copying: pieces of blocks, of the zero page, and of the
// spill file. Planned under the file's mutex in a moment, used after it was let go.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "buffer_pool/result.h"
#include "fuse_target/store/spill_file.h"
#include "fuse_target/store/store_memory.h"

namespace ppmr {

// Threads: one at a time. Kept and used again by its thread, so that planning allocates nothing.
class ReadPlan {
 public:
  void add_block(const BlockRef& block, size_t offset_in_block, size_t length);
  void add_zeros(size_t length);
  void add_spilled(const std::shared_ptr<SpillFile>& file, uint64_t offset, size_t length);
  void clear();

  // Reads what is on the disk, and copies where there are more pieces than one writev(2) takes.
  Status make_ready();

  std::span<const iovec> buffers() const { return buffers_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Spilled {
    size_t buffer = 0;
    uint64_t offset = 0;
  };

  std::vector<iovec> buffers_;
  std::vector<BlockRef> blocks_;  // held until clear()
  std::vector<Spilled> spilled_;
  std::shared_ptr<SpillFile> spill_file_;
  std::vector<std::byte> copied_;
  size_t size_bytes_ = 0;
};

}  // namespace ppmr
