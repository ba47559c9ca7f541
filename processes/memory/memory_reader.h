// Reads the memory of processes. The caller names the bytes by their place in the memory file
// (page_index.h).
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "processes/memory/page_index.h"

namespace ppmr {

// Threads: one per object; for_another_thread() makes an object for a second thread.
class MemoryReader {
 public:
  enum class Tree {
    kFrozen,
    // Reads zeros for memory that has gone, or whose process has ended. For other memory that
    // cannot be read, returns an error, because zeros would count as a copy of the memory.
    kRuns,
  };

  // Errors: EPROTO for an index whose ranges do not cover the file in order. The reader does not
  // use the index after this call.
  static Result<MemoryReader> create(const PageIndex& index, Tree tree = Tree::kFrozen);
  MemoryReader for_another_thread() const { return MemoryReader(pieces_, tree_); }

  // Fills `to` with the bytes at `offset` in the file. Errors: EINVAL when the file is too short;
  // those of process_vm_readv(2) and of /proc/PID/mem, with the process and the address.
  Status read(uint64_t offset, std::span<std::byte> to);

 private:
  // The memory of the file from `offset` to the next piece. The last piece only marks the end.
  struct Piece {
    uint64_t offset = 0;
    uint64_t address = 0;
    pid_t process = 0;
    uint64_t start_time = 0;  // as in ProcessIdentity
    bool is_shared = false;   // several processes map it
  };
  using Pieces = std::shared_ptr<const std::vector<Piece>>;

  MemoryReader(Pieces pieces, Tree tree);
  struct Span {
    uint64_t offset = 0;
    uint64_t end = 0;
  };

  static void mark_shared(std::vector<Piece>& pieces, std::vector<Span> shared);
  Result<bool> has_gone(const Piece& piece) const;
  Status read_gathered(pid_t process, std::span<std::byte> to);
  Status read_rest(pid_t process, size_t done, std::span<std::byte> bytes);
  Status read_forcibly(pid_t process, const iovec& remote, std::byte* to);
  Result<bool> open_memory(pid_t process);

  Tree tree_ = Tree::kFrozen;
  Pieces pieces_;                // sorted by offset; a byte is in the first range that has it
  std::vector<iovec> gathered_;  // pieces that are not read yet
  UniqueFd memory_;              // /proc/PID/mem of memory_of_, opened when it is needed
  pid_t memory_of_ = 0;
};

}  // namespace ppmr
