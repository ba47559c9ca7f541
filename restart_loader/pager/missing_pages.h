// The pages of one task that are not in its memory yet.
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
  // in the pages file; at most `bytes_max` together, and none twice. Replaces the contents of
  // `batch`.
  void next_batch(uint64_t address, uint64_t bytes_max, std::vector<PageRange>& batch) const;

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

  std::map<uint64_t, Piece> pieces_;  // by start
  uint64_t bytes_ = 0;
};

}  // namespace ppmr
