// Assigns new places to pages. Pages that had the same place get the same new place, even if
// different ranges contain them.
//
//  before   |  A  |     |     B     |       ranges A, B and C of places; B and C overlap
//                    |     C     |
//  after    |  A  |     B     | C |         the first range that has a page decides
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>

namespace ppmr {

// Threads: one.
class PlaceMap {
 public:
  // Returns the new place of bytes that no earlier range contained. These bytes begin `done_bytes`
  // after the start of the range.
  using Choose = std::function<uint64_t(uint64_t done_bytes, uint64_t length_bytes)>;
  using Visit = std::function<void(uint64_t done_bytes, uint64_t length_bytes, uint64_t place)>;

  // Calls `visit` for each part of the range whose new place is contiguous.
  void map(uint64_t place, uint64_t length_bytes, const Choose& choose, const Visit& visit) {
    const uint64_t end = place + length_bytes;
    for (uint64_t at = place; at < end;) {
      const auto next = known_.upper_bound(at);
      if (next != known_.begin()) {
        const auto& [start, piece] = *std::prev(next);
        if (at < piece.end) {
          const uint64_t length = std::min(end, piece.end) - at;
          visit(at - place, length, piece.place + (at - start));
          at += length;
          continue;
        }
      }
      const uint64_t length = (next == known_.end() ? end : std::min(end, next->first)) - at;
      const uint64_t chosen = choose(at - place, length);
      known_.emplace_hint(next, at, Piece{at + length, chosen});
      visit(at - place, length, chosen);
      at += length;
    }
  }

 private:
  struct Piece {
    uint64_t end = 0;
    uint64_t place = 0;
  };
  std::map<uint64_t, Piece> known_;  // key: the old place
};

}  // namespace ppmr
