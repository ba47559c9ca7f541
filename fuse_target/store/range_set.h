// A set of byte ranges: the parts of a file that have arrived. The set merges adjacent ranges, so a
// file that was written from front to back has one range, however many chunks it has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ppmr {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;  // one past the last byte

  bool empty() const { return begin >= end; }
  uint64_t length() const { return empty() ? 0 : end - begin; }
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  Range intersection(const Range& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
  bool operator==(const Range&) const = default;
};

// Threads: not synchronised; the owner's mutex guards it.
class RangeSet {
 public:
  void add(Range range);
  void remove(Range range);
  void clear() { ranges_.clear(); }

  // Returns whether all of `range` is in the set; true for an empty range.
  bool contains(Range range) const;
  // Returns the end of the range that contains `position`; `position` if no range contains it.
  uint64_t end_of_range_at(uint64_t position) const {
    const auto found = first_ending_after(position);
    return found != ranges_.end() && found->begin <= position ? found->end : position;
  }
  uint64_t end() const { return ranges_.empty() ? 0 : ranges_.back().end; }
  const std::vector<Range>& ranges() const { return ranges_; }

  // Splits `range` into consecutive parts and calls visit(part, covered) for each.
  template <typename Visit>
  void for_each_part(Range range, Visit&& visit) const {
    uint64_t at = range.begin;
    for (auto next = first_ending_after(at); at < range.end; ++next) {
      const bool last = next == ranges_.end() || next->begin >= range.end;
      const uint64_t gap_end = last ? range.end : next->begin;
      if (at < gap_end) visit(Range{at, gap_end}, false);
      if (last) return;
      const Range covered = next->intersection({std::max(at, gap_end), range.end});
      visit(covered, true);
      at = covered.end;
    }
  }

 private:
  std::vector<Range>::const_iterator first_ending_after(uint64_t position) const {
    return std::upper_bound(ranges_.begin(), ranges_.end(), position,
                            [](uint64_t at, const Range& range) { return at < range.end; });
  }

  std::vector<Range> ranges_;  // sorted, with a gap between neighbours
};

}  // namespace ppmr
