// The functions of ImageFile for kept checkpoints (fuse_target/keep). They list the ranges that the
// keeper writes. Afterwards, they let readers get the bytes from the disk.
#include "fuse_target/store/image_file.h"

namespace ppmr {

std::vector<Range> ImageFile::stored_ranges() const {
  MutexLock lock(mutex_);
  return arrived_.ranges();
}

void ImageFile::restore(KeptBytes kept, uint64_t size_bytes) {
  MutexLock lock(mutex_);
  for (const KeptBytes::Extent& extent : kept.extents) {
    arrived_.add(Range{extent.offset, extent.offset + extent.length}.intersection({0, size_bytes}));
  }
  size_bytes_ = size_bytes;
  closed_ = true;
  kept_ = std::make_unique<const KeptBytes>(std::move(kept));
}

std::shared_ptr<const DiskBytes> ImageFile::read_from(KeptBytes kept) {
  MutexLock lock(mutex_);
  // A file that was removed meanwhile has no bytes any more.
  if (!closed_ || !in_flight_.empty() || arrived_.ranges().empty()) return nullptr;
  std::shared_ptr<const DiskBytes> before = std::move(spill_file_);
  if (kept_) before = kept_->bytes;
  kept_ = std::make_unique<const KeptBytes>(std::move(kept));
  series_.reset();
  windows_.clear();
  return before;
}

bool ImageFile::is_on_disk() const {
  MutexLock lock(mutex_);
  return kept_ || spill_file_;
}

void ImageFile::plan_kept_locked(Range part, ReadPlan& plan) const {
  while (!part.empty()) {
    const KeptBytes::Extent* const extent = kept_->extent_at(part.begin);
    if (extent == nullptr) return plan.add_zeros(part.length());
    const Range piece = part.intersection({extent->offset, extent->offset + extent->length});
    plan.add_spilled(kept_->bytes, extent->place + (piece.begin - extent->offset), piece.length());
    part.begin = piece.end;
  }
}

}  // namespace ppmr
