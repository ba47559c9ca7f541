// The pages of one task that are not in its memory yet. The offsets of the ranges are places in the
// task's page file (page_file.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "restart_loader/pager/page_images.h"

namespace ppmr {

// Addresses are page boundaries. Threads: one at a time; the owner has a lock.
class MissingPages {
 public:
  MissingPages() = default;
  // `ranges` must not overlap.
  explicit MissingPages(const std::vector<PageRange>& ranges);

  bool empty() const { return pieces_.empty(); }
  uint64_t bytes() const { return bytes_; }
  // Returns the first missing range in [start, end), clipped to [start, end).
  std::optional<PageRange> first_in(uint64_t start, uint64_t end) const;
  // Replaces the contents of `batch` with missing ranges whose bytes are next to each other in one
  // file. Takes the ranges at or after `address` first, then those before it; at most `bytes_max`
  // together, and none twice.
  void next_batch(uint64_t address, uint64_t bytes_max, std::vector<PageRange>& batch) const;

  // Returns in `batch` the first missing ranges at or after `address` whose places are at or after
  // `place_min` and next to each other; at most `bytes_max` together. `batch` is empty if there are
  // none.
  void next_behind(uint64_t address, uint64_t place_min, uint64_t bytes_max,
                   std::vector<PageRange>& batch) const;

  // Notes that the pages have arrived, or that the task no longer needs them.
  void remove(uint64_t start, uint64_t end);
  // Notes that the task has moved this memory (mremap(2)).
  void move(uint64_t from, uint64_t to, uint64_t length_bytes);

 private:
  struct Piece {
    uint64_t end = 0;
    uint64_t offset = 0;
  };
  void add(const PageRange& range);
  void add_adjoining(std::optional<PageRange> range, uint64_t bytes_max,
                     std::vector<PageRange>& batch) const;

  std::map<uint64_t, Piece> pieces_;  // key: the start address
  uint64_t bytes_ = 0;
};

}  // namespace ppmr
