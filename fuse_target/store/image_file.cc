#include "fuse_target/store/image_file.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace ppmr {
namespace {

// A file whose first chunk ends at or before this offset is treated as small.
constexpr uint64_t kSmallFileMaxBytes = 256 << 10;

// In a small file's first 2 MiB, block 0 covers [0, 4K), block i > 0 [4K << (i-1), 4K << i).
size_t series_index(uint64_t offset) {
  return static_cast<size_t>(std::bit_width(offset / kSmallestBlockBytes));
}
Range series_range(size_t index) {
  if (index == 0) return {0, kSmallestBlockBytes};
  return {kSmallestBlockBytes << (index - 1), kSmallestBlockBytes << index};
}

// Set in Landing::store_data if the piece is in bounce memory (see allocate_bounce()). land() then
// spills the piece.
constexpr uint64_t piece_bit(size_t piece) { return uint64_t{1} << piece; }

}  // namespace

// ---- Where bytes are stored --------------------------------------------------------------------

ImageFile::Place ImageFile::place_locked(uint64_t offset) {
  if (offset < kExtentBytes && series_) {
    const size_t index = series_index(offset);
    return {&(*series_)[index], series_range(index)};
  }
  const uint64_t window = offset / kExtentBytes;
  const Range covers{window * kExtentBytes, (window + 1) * kExtentBytes};
  const auto found = windows_.find(window);
  return {found == windows_.end() ? nullptr : &found->second, covers};
}

ImageFile::Place ImageFile::make_place_locked(uint64_t offset) {
  Place place = place_locked(offset);
  if (place.segment == nullptr) place.segment = &windows_[offset / kExtentBytes];
  return place;
}

// Frees the blocks whose whole range is in `range`.
void ImageFile::drop_segments_locked(Range range) {
  if (series_) {
    for (size_t i = 0; i < kSeriesLength; ++i) {
      const Range covers = series_range(i);
      if (range.begin <= covers.begin && covers.end <= range.end) (*series_)[i] = {};
    }
    if (range.begin == 0 && range.end >= kExtentBytes) series_.reset();
  }
  const uint64_t first = (range.begin + kExtentBytes - 1) / kExtentBytes;
  const uint64_t last = range.end / kExtentBytes;
  if (first < last) windows_.erase(windows_.lower_bound(first), windows_.lower_bound(last));
}

// ---- Arrival -----------------------------------------------------------------------------------

Status ImageFile::announce(uint64_t offset, uint32_t length) {
  if (length == 0 || length > kChunkMaxBytes || offset > uint64_t{INT64_MAX} - length) {
    return failure(EMSGSIZE, "chunk of " + std::to_string(length) + " bytes at offset " +
                                 std::to_string(offset) + ": length or offset out of range");
  }
  MutexLock lock(mutex_);
  in_flight_.push_back({offset, offset + length});
  size_bytes_ = std::max(size_bytes_, offset + length);
  closed_ = false;  // the source may have reopened a closed file
  return {};
}

void ImageFile::retract(uint64_t offset, uint32_t length) {
  MutexLock lock(mutex_);
  retract_locked(offset, length);
}

void ImageFile::retract_locked(uint64_t offset, uint32_t length) {
  const auto found =
      std::find(in_flight_.begin(), in_flight_.end(), Range{offset, offset + length});
  if (found != in_flight_.end()) in_flight_.erase(found);
}

Status ImageFile::promise(uint64_t size_bytes) {
  const tl::unexpected<Error> full =
      failure(ENOSPC, "no memory for " + std::to_string(size_bytes) +
                          " bytes: the target's memory limit is reached (raise --memory-limit, or "
                          "give a --spill-dir)");
  MutexLock lock(mutex_);
  if (closed_ || size_bytes == 0) return {};
  // A promise covers whole windows, so this takes the blocks of the first 2 MiB now.
  for (size_t i = 0; series_ && i < kSeriesLength; ++i) {
    Segment& segment = (*series_)[i];
    if (segment.block || segment.spilled) continue;
    segment.block = storage_.memory.allocate(series_range(i).length());
    if (!segment.block && storage_.spill == nullptr) return full;
  }
  const uint64_t windows = size_bytes / kExtentBytes + (size_bytes % kExtentBytes != 0);
  const uint64_t taken = windows_.size() + (series_ ? 1 : 0);
  const uint64_t missing = windows - std::min(windows, taken);
  if (missing > storage_.memory.counters().limit_bytes / kExtentBytes) {
    return storage_.spill != nullptr ? Status{} : Status(full);
  }
  if (promised_.bytes() >= missing * kExtentBytes) return {};
  StoreCharge charge = storage_.memory.charge(missing * kExtentBytes);
  if (!charge && storage_.spill == nullptr) return full;
  if (charge) promised_ = std::move(charge);
  return {};
}

Status ImageFile::reserve(Landing& landing) {
  landing.piece_count = 0;
  landing.store_data = 0;
  const Range range{landing.offset, landing.offset + landing.length};
  BlockRef bounce;
  uint32_t bounced = 0;
  Status status;
  MutexLock lock(mutex_);
  if (storage_.consume && range.begin < consumed_end_) {
    return failure(ESPIPE, "chunk at offset " + std::to_string(range.begin) +
                               ": a read has already freed the bytes there (--consume)");
  }
  if (range.begin < kExtentBytes && !series_ && windows_.count(0) == 0 &&
      range.end <= kSmallFileMaxBytes) {
    series_ = std::make_unique<Series>();
  }
  for (uint64_t at = range.begin; at < range.end;) {
    const Place place = make_place_locked(at);
    const Range part = place.covers.intersection({at, range.end});
    assert(part.begin == at && !part.empty() && place.covers.length() <= kExtentBytes &&
           "the place of a byte does not cover it");
    assert(landing.piece_count < landing.pieces.size() && "a chunk lands in too many pieces");
    Segment& segment = *place.segment;
    if (!segment.block && !segment.spilled) {
      segment.block = storage_.memory.allocate(place.covers.length(), &promised_);
      if (!segment.block && storage_.spill != nullptr) segment.spilled = true;
    }
    Landing::Piece& piece = landing.pieces[landing.piece_count];
    piece.length = static_cast<uint32_t>(part.length());
    BlockRef block = segment.block;
    if (segment.spilled) {
      if (!bounce) bounce = storage_.memory.allocate_bounce();
      block = bounce;
      landing.store_data |= piece_bit(landing.piece_count);
    }
    if (!block) {
      // EAGAIN if memory will become free. Bounce memory becomes free when its bytes are spilled.
      // Other memory becomes free only with --consume, when a reader consumes bytes.
      const bool later = segment.spilled || storage_.consume;
      status = failure(later ? EAGAIN : ENOSPC,
                       "no memory for " + std::to_string(part.length()) +
                           " bytes: the target's memory limit is reached (raise --memory-limit, or "
                           "give a --spill-dir)");
      break;
    }
    piece.data = segment.spilled ? block.bytes().data() + bounced
                                 : block.bytes().data() + (part.begin - place.covers.begin);
    if (segment.spilled) bounced += piece.length;
    piece.region = block.region();
    piece.block = block.detach();
    ++landing.piece_count;
    at = part.end;
  }
  if (!status) {
    release(storage_.memory, landing);
    landing.piece_count = 0;
    return status;
  }
  if (landing.store_data == 0 || spill_file_) return {};
  lock.unlock();
  auto file = storage_.spill->create_file();
  if (!file) {
    release(storage_.memory, landing);
    landing.piece_count = 0;
    return failure(file.error());
  }
  lock.lock();
  if (!spill_file_) spill_file_ = std::move(*file);
  return {};
}

void ImageFile::release(StoreMemory& memory, const Landing& landing) {
  for (uint32_t i = 0; i < landing.piece_count; ++i) memory.adopt(landing.pieces[i].block);
}

// Returns false when the source has truncated the file since reserve(), which the protocol forbids.
bool ImageFile::is_in_place_locked(const Landing& landing) {
  uint64_t at = landing.offset;
  for (uint32_t i = 0; i < landing.piece_count; ++i) {
    const Place place = place_locked(at);
    const bool bounced = (landing.store_data & piece_bit(i)) != 0;
    if (place.segment == nullptr || place.segment->spilled != bounced) return false;
    // A segment that was created again may have no memory.
    const BlockRef& block = place.segment->block;
    if (!bounced && (!block || block.id() != landing.pieces[i].block)) return false;
    at += landing.pieces[i].length;
  }
  return true;
}

Status ImageFile::land(const Landing& landing, uint64_t chunk_digest) {
  Status status;
  if (landing.store_data != 0) {
    std::shared_ptr<SpillFile> spill_file;
    {
      MutexLock lock(mutex_);
      spill_file = spill_file_;
    }
    if (!spill_file) status = failure(EIO, "the checkpoint failed while the chunk was in flight");
    uint64_t at = landing.offset;
    for (uint32_t i = 0; i < landing.piece_count && status; ++i) {
      const Landing::Piece& piece = landing.pieces[i];
      if ((landing.store_data & piece_bit(i)) != 0)
        status = spill_file->write(at, {piece.data, piece.length});
      at += piece.length;
    }
  }
  {
    MutexLock lock(mutex_);
    retract_locked(landing.offset, landing.length);
    if (status && !is_in_place_locked(landing)) {
      status = failure(EIO, "chunk at offset " + std::to_string(landing.offset) +
                                ": the file was truncated while the chunk was in flight");
    }
    if (status) {
      arrived_.add({landing.offset, landing.offset + landing.length});
      digest_ += chunk_digest;
    }
  }
  release(storage_.memory, landing);
  return status;
}

void ImageFile::abandon(const Landing& landing) {
  retract(landing.offset, landing.length);
  release(storage_.memory, landing);
}

// ---- Size --------------------------------------------------------------------------------------

void ImageFile::truncate(uint64_t size_bytes) {
  MutexLock lock(mutex_);
  const Range cut{size_bytes, size_bytes_};
  arrived_.remove({size_bytes, UINT64_MAX});
  zeros_.remove({size_bytes, UINT64_MAX});
  drop_segments_locked({size_bytes, uint64_t{INT64_MAX} + 1});
  size_bytes_ = size_bytes;
  consumed_end_ = std::min(consumed_end_, size_bytes);
  digest_ = 0;
  const auto spill_file = spill_file_;
  lock.unlock();
  if (spill_file && !cut.empty()) spill_file->punch_hole(cut.begin, cut.length());
}

void ImageFile::punch_hole(uint64_t offset, uint64_t length_bytes) {
  const Range hole{offset, offset + std::min(length_bytes, uint64_t{INT64_MAX} - offset)};
  MutexLock lock(mutex_);
  arrived_.remove(hole);
  drop_segments_locked(hole);
  digest_ = 0;
  const auto spill_file = spill_file_;
  lock.unlock();
  if (spill_file && !hole.empty()) spill_file->punch_hole(hole.begin, hole.length());
}

void ImageFile::zeros(uint64_t offset, uint64_t length_bytes) {
  const Range range{offset, offset + std::min(length_bytes, uint64_t{INT64_MAX} - offset)};
  if (range.empty()) return;
  MutexLock lock(mutex_);
  zeros_.add(range);
  size_bytes_ = std::max(size_bytes_, range.end);
}

void ImageFile::open_for_write() {
  MutexLock lock(mutex_);
  closed_ = false;
}

uint64_t ImageFile::known_end_locked() const {
  uint64_t end = std::max(arrived_.end(), zeros_.end());
  for (const Range& range : in_flight_) end = std::max(end, range.end);
  return end;
}

void ImageFile::close(uint64_t size_bytes) {
  MutexLock lock(mutex_);
  size_bytes_ = std::max(size_bytes, known_end_locked());
  closed_ = true;
  promised_ = {};
}

std::shared_ptr<const DiskBytes> ImageFile::discard() {
  MutexLock lock(mutex_);
  arrived_.clear();
  zeros_.clear();
  series_.reset();
  windows_.clear();
  promised_ = {};
  if (kept_) {
    // Its bytes are neither in memory nor spilled.
    std::shared_ptr<const DiskBytes> kept = kept_->bytes;
    kept_.reset();
    return kept;
  }
  return std::move(spill_file_);
}

ImageFile::Facts ImageFile::facts() const {
  MutexLock lock(mutex_);
  Facts facts{size_bytes_, closed_, !in_flight_.empty(), digest_, 0};
  for (const Range& range : arrived_.ranges()) facts.stored_bytes += range.length();
  return facts;
}

}  // namespace ppmr
