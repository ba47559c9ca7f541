// Records which blocks of a memory file a thread has taken to send, and which of the other blocks
// the target wants first. Two threads send a file: one takes all blocks in the order of the file,
// the other takes the wanted blocks. Each block is taken once.
//
// The target chooses which blocks it wants, so the size of this object does not depend on the
// target's requests: it has two bits per block.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace ppmr {

inline constexpr uint64_t kWantedBlockBytes = uint64_t{64} << 10;

// Threads: any.
class WantedBlocks {
 public:
  struct Part {  // a part of the file
    uint64_t offset = 0;
    uint64_t length = 0;
  };

  explicit WantedBlocks(uint64_t file_bytes);

  // Requests the blocks of a range. Has no effect for blocks that are taken already, and for the
  // part of the range behind the end of the file.
  void want(uint64_t offset, uint64_t length);
  // Takes the first consecutive blocks at or behind `offset` that are not taken yet: at least one
  // block, at most `length_max` bytes. `offset` is a multiple of the block size. Returns an empty
  // part if all blocks are taken.
  Part take_next(uint64_t offset, uint64_t length_max);
  // Takes wanted blocks in the same way. Continues behind the last block that it took, and after
  // the end of the file at its beginning, so every wanted block has its turn. Returns an empty part
  // if no block is wanted. The caller calls wanted_sent() after it has announced the blocks.
  Part take_wanted(uint64_t length_max);
  void wanted_sent();
  // Returns how many bytes of the file are taken.
  uint64_t taken_bytes() const;

  // Returns whether blocks are wanted and not sent yet; false after finish().
  bool any_wanted() const;
  // Blocks until a block is wanted. Returns false after finish().
  bool await_wanted();
  // Blocks until every wanted block is sent, or until finish().
  void await_none_wanted();
  // From now on no thread takes wanted blocks.
  void finish();
  bool finished() const;

 private:
  using Bits = std::vector<uint64_t>;
  // Returns the first block at or behind `from` whose bit is `value`.
  size_t find_locked(const Bits& bits, size_t from, bool value) const PPMR_REQUIRES(mutex_);
  Part take_locked(size_t first, size_t end) PPMR_REQUIRES(mutex_);
  bool any_wanted_locked() const PPMR_REQUIRES(mutex_) {
    return !finished_ && (wanted_count_ > 0 || sending_wanted_);
  }

  const uint64_t file_bytes_;
  const size_t block_count_;

  mutable Mutex mutex_;
  CondVar changed_;
  Bits taken_ PPMR_GUARDED_BY(mutex_);
  Bits wanted_ PPMR_GUARDED_BY(mutex_);  // never a taken block
  uint64_t taken_bytes_ PPMR_GUARDED_BY(mutex_) = 0;
  size_t wanted_count_ PPMR_GUARDED_BY(mutex_) = 0;
  bool sending_wanted_ PPMR_GUARDED_BY(mutex_) =
      false;                                        // true between take_wanted() and wanted_sent()
  size_t next_wanted_ PPMR_GUARDED_BY(mutex_) = 0;  // the block at which take_wanted() continues
  bool finished_ PPMR_GUARDED_BY(mutex_) = false;
};

}  // namespace ppmr
