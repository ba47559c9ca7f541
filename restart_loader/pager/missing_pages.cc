#include "restart_loader/pager/missing_pages.h"

#include <algorithm>
#include <cassert>

namespace ppmr {

MissingPages::MissingPages(const std::vector<PageRange>& ranges) {
  for (const PageRange& range : ranges) add(range);
}

void MissingPages::add(const PageRange& range) {
  pieces_[range.start] = {range.end, range.offset};
  bytes_ += range.bytes();
}

std::optional<PageRange> MissingPages::first_in(uint64_t start, uint64_t end) const {
  auto piece = pieces_.upper_bound(start);
  if (piece != pieces_.begin() && std::prev(piece)->second.end > start) --piece;
  if (piece == pieces_.end() || piece->first >= end) return std::nullopt;
  const uint64_t from = std::max(start, piece->first);
  return PageRange{from, std::min(end, piece->second.end),
                   piece->second.offset + (from - piece->first)};
}

void MissingPages::next_batch(uint64_t address, uint64_t bytes_max,
                              std::vector<PageRange>& batch) const {
  batch.clear();
  auto range = first_in(address, UINT64_MAX);
  if (!range) range = first_in(0, address);
  add_adjoining(range, bytes_max, batch);
}

void MissingPages::next_behind(uint64_t address, uint64_t place_min, uint64_t bytes_max,
                               std::vector<PageRange>& batch) const {
  batch.clear();
  auto range = first_in(address, UINT64_MAX);
  while (range && range->offset < place_min) range = first_in(range->end, UINT64_MAX);
  add_adjoining(range, bytes_max, batch);
}

// Adds `range`, and the pieces after it whose bytes adjoin in the file.
void MissingPages::add_adjoining(std::optional<PageRange> range, uint64_t bytes_max,
                                 std::vector<PageRange>& batch) const {
  uint64_t bytes = 0;
  while (range && bytes < bytes_max) {
    range->end = std::min(range->end, range->start + (bytes_max - bytes));
    const bool adjoins =
        batch.empty() || range->offset == batch.back().offset + batch.back().bytes();
    if (!adjoins) return;
    batch.push_back(*range);
    bytes += range->bytes();
    range = first_in(range->end, UINT64_MAX);
  }
}

void MissingPages::remove(uint64_t start, uint64_t end) {
  while (const auto range = first_in(start, end)) {
    auto piece = std::prev(pieces_.upper_bound(range->start));
    const uint64_t piece_start = piece->first;
    const Piece whole = piece->second;
    assert(bytes_ >= range->bytes() && piece_start <= range->start && range->end <= whole.end &&
           "the missing pages are not in order");
    bytes_ -= range->bytes();
    if (piece_start < range->start) {
      piece->second.end = range->start;
    } else {
      pieces_.erase(piece);
    }
    if (range->end < whole.end) {
      pieces_[range->end] = {whole.end, whole.offset + (range->end - piece_start)};
    }
    start = range->end;
  }
}

void MissingPages::move(uint64_t from, uint64_t to, uint64_t length_bytes) {
  std::vector<PageRange> moved;
  uint64_t at = from;
  while (const auto range = first_in(at, from + length_bytes)) {
    moved.push_back(*range);
    at = range->end;
  }
  remove(from, from + length_bytes);
  remove(to, to + length_bytes);  // mremap(2) has unmapped the earlier pages there
  for (const PageRange& range : moved) {
    add({range.start - from + to, range.end - from + to, range.offset});
  }
}

}  // namespace ppmr
