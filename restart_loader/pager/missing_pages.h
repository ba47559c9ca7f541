// The pages of one task that are not in its memory yet. The offsets of their ranges are places of
// page_files.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "restart_loader/pager/page_images.h"

namespace ppmr {

// Addresses are page boundaries. Threads: guarded by the owner.
class MissingPages {
 public:
  MissingPages() = default;
  // `ranges`: not overlapping.
  explicit MissingPages(const std::vector<PageRange>& ranges);

  bool empty() const { return pieces_.empty(); }
  uint64_t bytes() const { return bytes_; }
  // The first missing range in [start, end), clipped to it.
  std::optional<PageRange> first_in(uint64_t start, uint64_t end) const;
  // Missing ranges at or after `address`, then those before it, whose bytes are next to each other
  // in one file; at most `bytes_max` together, and none twice. Replaces the contents of
  // `batch`.
  void next_batch(uint64_t address, uint64_t bytes_max, std::vector<PageRange>& batch) const;

  // The first missing ranges at or after `address` with places from `place_min` on, which are next
  // to each other; at most `bytes_max` together. Empty if there are none.
  void next_behind(uint64_t address, uint64_t place_min, uint64_t bytes_max,
                   std::vector<PageRange>& batch) const;

  // The pages have arrived, or are not needed any more.
  void remove(uint64_t start, uint64_t end);
  // The task has moved this memory (mremap(2)).
  void move(uint64_t from, uint64_t to, uint64_t length_bytes);

 private:
  struct Piece {
    uint64_t end = 0;
    uint64_t offset = 0;
  };
  void add(const PageRange& range);
  void add_adjoining(std::optional<PageRange> range, uint64_t bytes_max,
                     std::vector<PageRange>& batch) const;

  std::map<uint64_t, Piece> pieces_;  // by start
  uint64_t bytes_ = 0;
};

}  // namespace ppmr
