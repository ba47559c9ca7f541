// Reads a file. A read is answered when its whole range has arrived.
#include <algorithm>

#include "fuse_target/store/image_file.h"
#include "third_party/spdlog.h"

namespace ppmr {

bool ImageFile::in_flight_locked(Range range) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const Range& chunk) { return chunk.overlaps(range); });
}

bool ImageFile::arrived_locked(Range range) const {
  bool arrived = true;
  arrived_.for_each_part(range, [&](Range part, bool landed) {
    mutex_.assert_held();
    arrived = arrived && (landed || zeros_.contains(part));
  });
  return arrived;
}

Range ImageFile::missing(uint64_t offset, size_t length) const {
  MutexLock lock(mutex_);
  constexpr uint64_t kEndMax = INT64_MAX;
  if (closed_ || length > kEndMax || offset > kEndMax - length) return {};
  const Range range{offset, offset + length};
  RangeSet known;
  const auto add = [&known](Range part, bool is_known) {
    if (is_known) known.add(part);
  };
  arrived_.for_each_part(range, add);
  zeros_.for_each_part(range, add);
  for (const Range& chunk : in_flight_) known.add(chunk.intersection(range));
  Range missing;
  known.for_each_part(range, [&missing](Range part, bool is_known) {
    if (is_known) return;
    if (missing.empty()) missing.begin = part.begin;
    missing.end = part.end;
  });
  return missing;
}

void ImageFile::plan_locked(Range range, ReadPlan& plan) {
  arrived_.for_each_part(range, [&](Range part, bool arrived) {
    mutex_.assert_held();
    if (!arrived) {
      plan.add_zeros(part.length());
      return;
    }
    if (kept_) return plan_kept_locked(part, plan);
    while (!part.empty()) {
      const Place place = place_locked(part.begin);
      const Range piece = place.covers.intersection(part);
      if (place.segment != nullptr && place.segment->block) {
        plan.add_block(place.segment->block, piece.begin - place.covers.begin, piece.length());
      } else if (place.segment != nullptr && place.segment->spilled) {
        plan.add_spilled(spill_file_, piece.begin, piece.length());
      } else {
        plan.add_zeros(piece.length());
      }
      part.begin = piece.end;
    }
  });
}

Result<ImageFile::Readiness> ImageFile::read(uint64_t offset, size_t length, ReadPlan& plan) {
  plan.clear();
  MutexLock lock(mutex_);
  Range range{offset, offset + std::min<uint64_t>(length, uint64_t{INT64_MAX} - offset)};
  if (closed_) range.end = std::min(range.end, size_bytes_);
  if (storage_.consume && offset != consumed_end_ && !(closed_ && range.empty())) {
    if (!std::exchange(order_error_logged_, true)) {
      spdlog::error(
          "read at offset {} refused: the previous read ended at {} and --consume requires reading "
          "each file once, front to back",
          offset, consumed_end_);
    }
    return failure(ESPIPE, "read out of order");
  }
  if (range.empty()) return Readiness::kReady;
  if (in_flight_locked(range)) return Readiness::kWait;
  if (!closed_ && !arrived_locked(range)) return Readiness::kWait;
  plan_locked(range, plan);
  if (!storage_.consume) return Readiness::kReady;
  consume_locked(range.end);
  const auto spill_file = spill_file_;
  lock.unlock();
  // Frees only the bytes before the range: the plan reads the range itself from the disk later.
  if (spill_file) spill_file->punch_hole(0, range.begin);
  return Readiness::kReady;
}

Status ImageFile::read_back(uint64_t offset, size_t length, ReadPlan& plan) {
  plan.clear();
  MutexLock lock(mutex_);
  if (offset >= size_bytes_) return {};
  const Range range{offset, std::min<uint64_t>(size_bytes_, offset + length)};
  if (in_flight_locked(range)) return failure(EAGAIN, "read back: bytes are in flight");
  if (offset < consumed_end_)
    return failure(ESPIPE, "read back: the bytes were read and freed (--consume)");
  plan_locked(range, plan);
  return {};
}

// Frees the blocks that end at or before `end`. The read plan has references to the blocks that it
// needs.
void ImageFile::consume_locked(uint64_t end) {
  consumed_end_ = end;
  const bool all = closed_ && end == size_bytes_;
  drop_segments_locked({0, all ? uint64_t{INT64_MAX} + 1 : end});
}

}  // namespace ppmr
