#include "processes/memory/small_ranges.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace ppmr {
namespace {

constexpr uint64_t kEndBytes = uint64_t{4} << 20;
constexpr uint64_t kSumMaxBytes = uint64_t{32} << 20;
constexpr size_t kRangesMax = 1000;  // limit for the ranges of one request to the daemon

}  // namespace

std::vector<PageRange> small_ranges(const PageIndex& index) {
  std::vector<PageRange> small;
  for (const IndexedTask& task : index.tasks) {
    std::copy_if(task.ranges.begin(), task.ranges.end(), std::back_inserter(small),
                 [](const PageRange& range) { return range.bytes() < kEndBytes; });
  }
  // Tasks that share a range have the same place in the file, so the place counts only once.
  const auto by_size = [](const PageRange& range) {
    return std::pair(range.bytes(), range.offset);
  };
  std::ranges::sort(small, {}, by_size);
  const auto same = [&](const PageRange& one, const PageRange& other) {
    return by_size(one) == by_size(other);
  };
  small.erase(std::unique(small.begin(), small.end(), same), small.end());
  uint64_t sum = 0;
  const auto beyond = std::ranges::find_if(
      small, [&](const PageRange& range) { return (sum += range.bytes()) > kSumMaxBytes; });
  small.erase(beyond, small.end());
  std::ranges::sort(small, {}, &PageRange::offset);
  std::vector<PageRange> joined;
  for (const PageRange& range : small) {
    if (!joined.empty() && joined.back().offset + joined.back().bytes() >= range.offset) {
      PageRange& last = joined.back();
      last.end = std::max(last.end, range.offset + range.bytes() - last.offset);
    } else {
      joined.push_back({0, range.bytes(), range.offset});
    }
  }
  if (joined.size() > kRangesMax) joined.resize(kRangesMax);
  return joined;
}

}  // namespace ppmr
