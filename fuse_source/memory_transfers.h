// Records to which files of a mount memory is sent now, and passes the wants of readers at the
// target to the threads that send it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "fuse_source/wanted_blocks.h"
#include "rdma_stream/wire/wire_control.h"

namespace ppmr {

// Threads: any.
class MemoryTransfers {
 public:
  // From now until end(), passes wants for `node` to `blocks`, whose first block is at
  // `file_offset` in the file. Passes wants that came earlier at once. `blocks` must live until
  // end(). Errors: EBUSY when memory is already sent to `node`.
  Status begin(uint64_t node, WantedBlocks& blocks, uint64_t file_offset);
  void end(uint64_t node);

  // Passes a want to the blocks of its file. If no memory is sent to the file now, calls
  // `may_begin`, which may lock the tree. If `may_begin` returns true, keeps the want for begin().
  // Any values are allowed.
  void want(const wire::Want& want, const std::function<bool()>& may_begin);

  // Returns how many bytes of the file are taken, including those of earlier transfers. Returns
  // nullopt if no memory is sent to the file now.
  std::optional<uint64_t> taken_bytes(uint64_t node);

  // Returns whether a transfer may hold a slot in reserve for wanted blocks. If so, the transfer
  // calls drop_reserve() at its end. All reserves together are at most half of the slots, because
  // each first pass must get a slot, too.
  bool may_reserve(size_t slot_count);
  void drop_reserve() { --reserves_; }

 private:
  struct Transfer {
    WantedBlocks* blocks = nullptr;
    uint64_t file_offset = 0;  // of the first block

    void want(const wire::Want& want) const;
  };

  Mutex mutex_;
  std::map<uint64_t, Transfer> transfers_ PPMR_GUARDED_BY(mutex_);  // by node
  std::deque<wire::Want> early_wants_ PPMR_GUARDED_BY(mutex_);
  std::atomic<uint32_t> reserves_ = 0;
};

}  // namespace ppmr
