#include "fuse_target/store/range_set.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace ppmr {

void RangeSet::add(Range range) {
  if (range.empty()) return;
  // Fast path for a file that is written from front to back.
  if (!ranges_.empty() && ranges_.back().begin <= range.begin &&
      range.begin <= ranges_.back().end) {
    ranges_.back().end = std::max(ranges_.back().end, range.end);
    return;
  }
  // Merge all ranges that overlap or touch `range`.
  const auto first = std::lower_bound(
      ranges_.begin(), ranges_.end(), range.begin,
      [](const Range& candidate, uint64_t begin) { return candidate.end < begin; });
  auto last = first;
  while (last != ranges_.end() && last->begin <= range.end) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
    ++last;
  }
  // In order, with a gap between any two.
  assert((first == ranges_.begin() || std::prev(first)->end < range.begin) &&
         (last == ranges_.end() || range.end < last->begin) && "two ranges overlap");
  if (first == last) {
    ranges_.insert(first, range);
    return;
  }
  *first = range;
  ranges_.erase(first + 1, last);
}

void RangeSet::remove(Range range) {
  if (range.empty()) return;
  auto at = ranges_.begin() + (first_ending_after(range.begin) - ranges_.cbegin());
  while (at != ranges_.end() && at->begin < range.end) {
    const Range old = *at;
    const Range before{old.begin, range.begin};
    const Range after{range.end, old.end};
    if (!before.empty() && !after.empty()) {
      *at = before;
      ranges_.insert(at + 1, after);
      return;
    }
    if (!before.empty()) {
      *at++ = before;
    } else if (!after.empty()) {
      *at++ = after;
    } else {
      at = ranges_.erase(at);
    }
  }
}

bool RangeSet::contains(Range range) const {
  if (range.empty()) return true;
  const auto found = first_ending_after(range.begin);
  return found != ranges_.end() && found->begin <= range.begin && range.end <= found->end;
}

}  // namespace ppmr
