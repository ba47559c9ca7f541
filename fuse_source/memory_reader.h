// Reads the memory of frozen processes into slots of the pool, in the order of the memory file (see
// mount/page_index).
//
//   next()  ->  up to one slot of bytes that follow each other in the file
//
// Threads: one.
#pragma once

#include <sys/uio.h>

#include <span>
#include <vector>

#include "buffer_pool/unique_fd.h"
#include "mount/page_index/page_index.h"

namespace ppmr {

class MemoryReader {
 public:
  // The index outlives the reader.
  explicit MemoryReader(const PageIndex& index);

  uint64_t offset() const { return offset_; }  // of the next bytes in the file
  bool at_end() const { return offset_ == index_.memory_bytes; }
  // Fills `slot` with the next bytes, and returns how many: all, unless the file ends. Errors:
  // EPROTO for an index whose ranges do not cover the file in order; those of
  // process_vm_readv(2), with the process and the address.
  Result<size_t> next(std::span<std::byte> slot);

 private:
  Status take_range();
  Status read_gathered(std::span<std::byte> slot);
  Status read_forcibly(const iovec& remote, std::byte* to);

  const PageIndex& index_;
  size_t task_ = 0;
  size_t range_ = 0;
  uint64_t taken_ = 0;  // bytes of the range
  uint64_t offset_ = 0;
  std::vector<iovec> gathered_;  // not read yet
  pid_t gathered_from_ = 0;
  UniqueFd memory_;  // /proc/PID/mem of memory_pid_, opened when it is needed
  pid_t memory_pid_ = 0;
};

// The parts of `bytes` (whole pages) that are not zero. Parts with few zero pages between them are
// one part. Replaces the contents of `parts`.
void find_nonzero(std::span<const std::byte> bytes, std::vector<std::span<const std::byte>>& parts);

}  // namespace ppmr
