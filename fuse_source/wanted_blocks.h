// Which blocks of a memory file were taken to be sent, and which of the others the target wants
// first. Two threads send a file: one takes all blocks in the order of the file, the other takes
// the wanted ones. Each block is taken once.
//
// The target chooses what it wants, so nothing here grows with its requests: two bits per block.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ppmr {

inline constexpr uint64_t kWantedBlockBytes = uint64_t{64} << 10;

// Threads: any.
class WantedBlocks {
 public:
  struct Part {  // of the file
    uint64_t offset = 0;
    uint64_t length = 0;
  };

  explicit WantedBlocks(uint64_t file_bytes);

  // Requests the blocks of a range. Without effect for blocks that are taken, and behind the end of
  // the file.
  void want(uint64_t offset, uint64_t length);
  // Takes the first blocks at or behind `offset`, a multiple of the block size, that are not taken:
  // consecutive ones, at most `length_max` bytes, at least one block. Empty: all are taken.
  Part take_next(uint64_t offset, uint64_t length_max);
  // Takes wanted blocks in the same way. It continues behind the last one that it took, and then at
  // the beginning of the file, so that every wanted block is taken in turn. Empty: none is wanted.
  // The caller calls wanted_sent() when it has announced them.
  Part take_wanted(uint64_t length_max);
  void wanted_sent();
  // How much of the file is taken.
  uint64_t taken_bytes() const;

  // Whether blocks are wanted and not sent yet; false after finish().
  bool any_wanted() const;
  // Blocks until a block is wanted. Returns false after finish().
  bool await_wanted();
  // Blocks until no block is wanted that is not sent yet, or until finish().
  void await_none_wanted();
  // From now on no thread takes wanted blocks.
  void finish();
  bool finished() const;

 private:
  using Bits = std::vector<uint64_t>;
  // The first block at or behind `from` whose bit is `value`.
  size_t find_locked(const Bits& bits, size_t from, bool value) const;
  Part take_locked(size_t first, size_t end);
  bool any_wanted_locked() const { return !finished_ && (wanted_count_ > 0 || sending_wanted_); }

  const uint64_t file_bytes_;
  const size_t block_count_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Bits taken_;
  Bits wanted_;  // never a taken block
  uint64_t taken_bytes_ = 0;
  size_t wanted_count_ = 0;
  bool sending_wanted_ = false;  // between take_wanted() and wanted_sent()
  size_t next_wanted_ = 0;       // where take_wanted() continues
  bool finished_ = false;
};

}  // namespace ppmr
