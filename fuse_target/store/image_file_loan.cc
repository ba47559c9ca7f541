// Lends a part of a file to another process.
#include <algorithm>

#include "fuse_target/store/image_file.h"

namespace ppmr {
namespace {

// Returns false when the loan has no room for another piece.
bool add_piece(FileLoan& loan, FileLoan::Piece piece, int region) {
  if (piece.place != FileLoan::kSpilled) {
    const auto found = std::find(loan.regions.begin(), loan.regions.end(), region);
    piece.place = static_cast<uint32_t>(found - loan.regions.begin());
    if (found == loan.regions.end()) {
      if (loan.regions.size() == kLoanRegionsMax) return false;
      loan.regions.push_back(region);
    }
  }
  if (!loan.pieces.empty()) {
    FileLoan::Piece& last = loan.pieces.back();
    if (last.place == piece.place && last.offset + last.length == piece.offset &&
        last.place_offset + last.length == piece.place_offset) {
      last.length += piece.length;
      return true;
    }
  }
  if (loan.pieces.size() == kLoanPiecesMax) return false;
  loan.pieces.push_back(piece);
  return true;
}

}  // namespace

Result<FileLoan> ImageFile::lend(uint64_t offset) {
  if (storage_.consume)
    return failure(EOPNOTSUPP, "lend a file: a target with --consume does not lend files");
  MutexLock lock(mutex_);
  if (!closed_ || !in_flight_.empty())
    return failure(EBUSY, "lend a file: not all of its bytes have arrived");
  return lend_locked({offset, size_bytes_});
}

Result<FileLoan> ImageFile::lend_arrived(uint64_t offset) {
  if (storage_.consume)
    return failure(EOPNOTSUPP, "lend a file: a target with --consume does not lend files");
  MutexLock lock(mutex_);
  return lend_locked({offset, arrived_end_locked(offset)});
}

// Returns the end of the arrived whole windows. Chunks in flight may land once more on bytes that
// have arrived. The result covers whole windows only, so no more bytes arrive in a spilled block
// that is lent.
uint64_t ImageFile::arrived_end_locked(uint64_t offset) const {
  uint64_t end = offset;
  for (uint64_t next = offset;; end = next) {
    next = zeros_.end_of_range_at(arrived_.end_of_range_at(end));
    if (next == end) break;
  }
  for (const Range& chunk : in_flight_) {
    if (chunk.end > offset) end = std::min(end, std::max(chunk.begin, offset));
  }
  if (closed_ && end >= size_bytes_) return size_bytes_;
  return std::max(offset, end / kExtentBytes * kExtentBytes);
}

FileLoan ImageFile::lend_locked(Range range) {
  FileLoan loan;
  loan.size_bytes = size_bytes_;
  loan.end = range.end;
  const auto& ranges = arrived_.ranges();
  const auto first = std::find_if(ranges.begin(), ranges.end(),
                                  [&](const Range& item) { return item.end > range.begin; });
  if (first == ranges.end() || range.empty()) return loan;
  const uint64_t begin = std::max(first->begin, range.begin);
  loan.end = std::min(range.end, begin + kLoanSpanMaxBytes);
  for (auto arrived = first; arrived != ranges.end() && arrived->begin < loan.end; ++arrived) {
    for (Range part = arrived->intersection({begin, loan.end}); !part.empty();) {
      const Place place = place_locked(part.begin);
      const Range piece = place.covers.intersection(part);
      part.begin = piece.end;
      if (place.segment == nullptr) continue;
      const BlockRef& block = place.segment->block;
      if (!block && !place.segment->spilled) continue;
      const uint64_t at =
          block ? block.region_offset() + (piece.begin - place.covers.begin) : piece.begin;
      const bool added =
          add_piece(loan, {piece.begin, piece.length(), block ? 0 : FileLoan::kSpilled, at},
                    block ? block.descriptor() : -1);
      if (!added) {
        loan.end = piece.begin;
        return loan;
      }
      if (block) {
        loan.blocks.push_back(block);
      } else {
        loan.spill_file = spill_file_;
      }
    }
  }
  return loan;
}

}  // namespace ppmr
