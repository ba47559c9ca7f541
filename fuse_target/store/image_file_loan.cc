// Lends a part of a file to another process.
#include <algorithm>

#include "fuse_target/store/image_file.h"

namespace ppmr {
namespace {

// Returns false when the loan has no room for another piece.
bool add_piece(FileLoan& loan, FileLoan::Piece piece, int region) {
  if (piece.place != FileLoan::kOnDisk) {
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

// Returns the longest piece at the beginning of `part` that is in one place, and its block if it is
// in memory. Bytes without a place are zeros.
FileLoan::Piece ImageFile::first_piece_locked(Range part, BlockRef& block) {
  if (kept_) {
    const KeptBytes::Extent* const extent = kept_->extent_at(part.begin);
    if (extent == nullptr) return {part.begin, part.length(), 0, 0};
    const Range piece = part.intersection({extent->offset, extent->offset + extent->length});
    return {piece.begin, piece.length(), FileLoan::kOnDisk,
            extent->place + (piece.begin - extent->offset)};
  }
  const Place place = place_locked(part.begin);
  const Range piece = place.covers.intersection(part);
  FileLoan::Piece found{piece.begin, piece.length(), 0, 0};
  if (place.segment == nullptr) return found;
  block = place.segment->block;
  if (block) {
    found.place_offset = block.region_offset() + (piece.begin - place.covers.begin);
  } else if (place.segment->spilled) {
    found.place = FileLoan::kOnDisk;
    found.place_offset = piece.begin;
  }
  return found;
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
      BlockRef block;
      const FileLoan::Piece piece = first_piece_locked(part, block);
      part.begin = piece.offset + piece.length;
      if (!block && piece.place != FileLoan::kOnDisk) continue;  // zeros
      if (!add_piece(loan, piece, block ? block.descriptor() : -1)) {
        loan.end = piece.offset;
        return loan;
      }
      if (block) {
        loan.blocks.push_back(block);
      } else {
        loan.on_disk = kept_ ? kept_->bytes : spill_file_;
      }
    }
  }
  return loan;
}

}  // namespace ppmr
