// The files of a mount to which memory is sent now, and the blocks of them that readers at the
// target wait for.
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
  // From now until end(), wants for `node` reach `blocks`, the first of which is at `file_offset`
  // in the file. Wants that came earlier reach them at once. `blocks` lives until end(). Errors:
  // EBUSY.
  Status begin(uint64_t node, WantedBlocks& blocks, uint64_t file_offset);
  void end(uint64_t node);

  // Readers may want bytes before they are sent: such a want is kept if `may_begin()`, which runs
  // only then and may lock the tree. Any values are allowed.
  void want(const wire::Want& want, const std::function<bool()>& may_begin);

  // Returns how many bytes of the file are taken, with those of earlier transfers. Empty: no memory
  // is sent to it.
  std::optional<uint64_t> taken_bytes(uint64_t node);

  // Each transfer may hold a slot in reserve for wanted blocks, as long as all reserves together
  // are at most half of the slots: each first pass must get a slot, too. Returns whether it may;
  // then it calls drop_reserve() at its end.
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
