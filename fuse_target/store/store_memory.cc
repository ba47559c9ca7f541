#include "fuse_target/store/store_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <numeric>
#include <string>

namespace ppmr {
namespace {

constexpr size_t kExtentsPerRegion = kRegionBytes / kExtentBytes;
constexpr size_t kBlocksPerExtentMax = kExtentBytes / kSmallestBlockBytes;
constexpr size_t kSlabClasses = std::countr_zero(kExtentBytes / kSmallestBlockBytes);
static_assert(kBlocksPerExtentMax == 512 && kSlabClasses == 9);

// The store's thread refills the reserve of touched memory when less than 1/kScarcePart of the
// reserve is left. It also refills the reserve when the store was idle for kIdle: it allocated,
// read and lent no block. A restore usually follows the last byte of a checkpoint and needs the
// cores. The pauses between its reads, in which CRIU computes, are shorter than kIdle.
constexpr std::chrono::milliseconds kIdle{500};
constexpr size_t kScarcePart = 8;

}  // namespace

// Metadata of an extent. Allocated together with its region, so the store counts references and
// free blocks without allocating.
struct StoreExtent {
  StoreMemory* owner = nullptr;
  std::byte* data = nullptr;
  int descriptor = -1;  // the memfd of the region
  uint32_t region = 0;
  uint32_t number = 0;
  // Written under the store's mutex, and only while no block is referenced.
  size_t block_bytes = kExtentBytes;
  // Guarded by the store's mutex; used only if the extent is a slab.
  size_t free_blocks = 0;
  std::array<uint64_t, kBlocksPerExtentMax / 64> free_map{};

  std::array<std::atomic<uint32_t>, kBlocksPerExtentMax> references{};

  size_t block_count() const { return kExtentBytes / block_bytes; }
};

struct StoreMemory::Region {
  MappedMemory memory;
  size_t used_extents = 0;
  std::array<StoreExtent, kExtentsPerRegion> extents;
};

// ---- References --------------------------------------------------------------------------------

BlockRef::BlockRef(const BlockRef& other) : extent_(other.extent_), index_(other.index_) {
  if (extent_ != nullptr) extent_->references[index_].fetch_add(1, std::memory_order_relaxed);
}

std::span<std::byte> BlockRef::bytes() const {
  return {extent_->data + index_ * extent_->block_bytes, extent_->block_bytes};
}

uint32_t BlockRef::region() const { return extent_->region; }

int BlockRef::descriptor() const { return extent_->descriptor; }

uint64_t BlockRef::region_offset() const {
  return (extent_->number % kExtentsPerRegion) * kExtentBytes + index_ * extent_->block_bytes;
}

uint32_t BlockRef::id() const {
  return static_cast<uint32_t>(extent_->number * kBlocksPerExtentMax + index_);
}

void BlockRef::reset() {
  if (extent_ == nullptr) return;
  StoreExtent* extent = std::exchange(extent_, nullptr);
  if (extent->references[index_].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    extent->owner->free_block(extent, index_);
  }
}

uint32_t BlockRef::detach() {
  const uint32_t block = id();
  extent_ = nullptr;
  return block;
}

// ---- The store ---------------------------------------------------------------------------------

Result<std::unique_ptr<StoreMemory>> StoreMemory::create(StoreOptions options,
                                                         std::function<void()> space_freed) {
  assert(options.set_aside_bytes + options.for_charges_bytes <= options.limit_bytes / 2 &&
         "set aside within the limit");
  if (options.limit_bytes < kLimitMinBytes) {
    return failure(EINVAL, "memory limit of " + std::to_string(options.limit_bytes) +
                               " bytes: the minimum is " + std::to_string(kLimitMinBytes));
  }
  return std::unique_ptr<StoreMemory>(new StoreMemory(std::move(options), std::move(space_freed)));
}

StoreMemory::StoreMemory(StoreOptions options, std::function<void()> space_freed)
    : limit_extents_(options.limit_bytes / kExtentBytes),
      ready_extents_(
          std::min(options.ready_bytes, options.limit_bytes - options.for_charges_bytes) /
          kExtentBytes),
      set_aside_extents_(options.set_aside_bytes / kExtentBytes),
      extents_for_charges_(options.for_charges_bytes / kExtentBytes),
      region_mapped_(std::move(options.region_mapped)),
      gives_back_(options.gives_back),
      give_back_after_(options.give_back_after),
      space_freed_(std::move(space_freed)),
      regions_((limit_extents_ + kExtentsPerRegion - 1) / kExtentsPerRegion),
      slabs_(kSlabClasses),
      fresh_(limit_extents_) {
  std::iota(fresh_.rbegin(), fresh_.rend(), 0);
  returned_.reserve(limit_extents_);
  touched_.reserve(limit_extents_);
  for (Slabs& slabs : slabs_) slabs.not_full.reserve(64);
  thread_ = std::thread([this] { keep_reserve(); });
}

StoreMemory::~StoreMemory() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  MutexLock lock(mutex_);
  assert(used_extents_ == 0 && charged_bytes_ == 0 && "a block outlives its store");
  assert(uses_ == 0 && "a use outlives its store");
  assert(std::all_of(slabs_.begin(), slabs_.end(),
                     [](const Slabs& slabs) { return slabs.not_full.empty(); }) &&
         "a slab outlives its store");
}

size_t StoreMemory::slab_class(size_t size_bytes) {
  const size_t block = std::max(std::bit_ceil(size_bytes), kSmallestBlockBytes);
  return static_cast<size_t>(std::countr_zero(block / kSmallestBlockBytes));
}

BlockRef StoreMemory::allocate(size_t size_bytes, StoreCharge* promised) {
  assert(size_bytes <= kExtentBytes);
  const size_t size_class = slab_class(size_bytes);
  MutexLock lock(mutex_);
  const bool is_promised = size_class == kSlabClasses && promised != nullptr &&
                           promised->memory_ == this && promised->bytes_ >= kExtentBytes;
  const size_t all = extents_max_locked(is_promised ? kExtentBytes : 0);
  const size_t extents_max = all - std::min(all, set_aside_extents_);
  if (size_class == kSlabClasses) {
    StoreExtent* extent = take_extent_locked(extents_max);
    if (extent == nullptr) return {};
    if (is_promised) {
      assert(charged_bytes_ >= kExtentBytes && "a charge was not counted");
      promised->bytes_ -= kExtentBytes;
      charged_bytes_ -= kExtentBytes;
    }
    extent->references[0].store(1, std::memory_order_relaxed);
    return BlockRef(extent, 0);
  }
  auto& not_full = slabs_[size_class].not_full;
  if (not_full.empty()) {
    StoreExtent* extent = take_extent_locked(extents_max);
    if (extent == nullptr) return {};
    extent->block_bytes = kSmallestBlockBytes << size_class;
    extent->free_blocks = extent->block_count();
    extent->free_map.fill(0);
    for (size_t i = 0; i < extent->free_blocks; ++i)
      extent->free_map[i / 64] |= uint64_t{1} << (i % 64);
    not_full.push_back(extent);
  }
  StoreExtent* extent = not_full.back();
  const auto word = std::find_if(extent->free_map.begin(), extent->free_map.end(),
                                 [](uint64_t bits) { return bits != 0; });
  assert(word != extent->free_map.end() && extent->free_blocks > 0 &&
         "a slab with free blocks has none");
  const auto bit = static_cast<uint32_t>(std::countr_zero(*word));
  const auto index = static_cast<uint32_t>(word - extent->free_map.begin()) * 64 + bit;
  *word &= *word - 1;
  if (--extent->free_blocks == 0) not_full.pop_back();
  extent->references[index].store(1, std::memory_order_relaxed);
  return BlockRef(extent, index);
}

BlockRef StoreMemory::allocate_bounce() {
  MutexLock lock(mutex_);
  StoreExtent* extent = take_extent_locked(extents_max_locked());
  if (extent == nullptr) return {};
  extent->references[0].store(1, std::memory_order_relaxed);
  return BlockRef(extent, 0);
}

StoreCharge StoreMemory::charge(size_t size_bytes) {
  MutexLock lock(mutex_);
  const size_t usable_extents = limit_extents_ - set_aside_extents_;
  const size_t free_extents = usable_extents - std::min(usable_extents, used_extents_);
  const size_t left = std::max(free_extents, extents_for_charges_) * kExtentBytes;
  if (charged_bytes_ > left || size_bytes > left - charged_bytes_) return {};
  charged_bytes_ += size_bytes;
  return {this, size_bytes};
}

StoreCharge::~StoreCharge() {
  if (memory_ == nullptr) return;
  MutexLock lock(memory_->mutex_);
  assert(memory_->charged_bytes_ >= bytes_ && "a charge ended twice");
  memory_->charged_bytes_ -= bytes_;
  memory_->note_freed_locked();
}

size_t StoreMemory::extents_max_locked(size_t promised_bytes) const {
  const size_t charged = (charged_bytes_ - promised_bytes + kExtentBytes - 1) / kExtentBytes;
  return limit_extents_ - std::min(limit_extents_, std::max(charged, extents_for_charges_));
}

BlockRef StoreMemory::adopt(uint32_t block_id) {
  const size_t number = block_id / kBlocksPerExtentMax;
  Region& region = *regions_[number / kExtentsPerRegion];
  return BlockRef(&region.extents[number % kExtentsPerRegion], block_id % kBlocksPerExtentMax);
}

// ---- Extents -----------------------------------------------------------------------------------

StoreMemory::Region& StoreMemory::region_of(const StoreExtent& extent) const {
  return *regions_[extent.region];
}

StoreExtent* StoreMemory::take_extent_locked(size_t extents_max) {
  StoreExtent* extent = nullptr;
  bool fresh = false;
  if (used_extents_ < extents_max) {
    // If thread_ is touching the last free extent, wait until it has finished.
    changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) {
      return !returned_.empty() || !touched_.empty() || !fresh_.empty() || !touching_;
    });
    if (used_extents_ >= extents_max) {
      // Other threads took the extents during the wait.
    } else if (!returned_.empty()) {
      extent = returned_.back();
      returned_.pop_back();
    } else if (!touched_.empty()) {
      extent = touched_.back();
      touched_.pop_back();
    } else {
      extent = fresh_extent_locked();
      fresh = extent != nullptr;
    }
  }
  if (extent == nullptr) {
    starved_ = true;
    return nullptr;
  }
  ++used_extents_;
  assert(used_extents_ <= limit_extents_ && "the store exceeds its limit");
  if (region_of(*extent).used_extents++ == 0) --unused_regions_;
  note_use();
  extent->block_bytes = kExtentBytes;
  if (touch_due_locked()) changed_.notify_all();
  if (fresh) {
    mutex_.unlock();
    MappedMemory::make_huge({extent->data, kExtentBytes});
    mutex_.lock();
  }
  return extent;
}

// Returns an extent without memory, after mapping its region if necessary. Returns null when there
// is no such extent or the mapping fails.
StoreExtent* StoreMemory::fresh_extent_locked() {
  if (fresh_.empty()) return nullptr;
  const size_t region_number = fresh_.back() / kExtentsPerRegion;
  auto& region = regions_[region_number];
  if (!region) {
    const size_t first = region_number * kExtentsPerRegion;
    const size_t count = std::min(kExtentsPerRegion, limit_extents_ - first);
    auto memory = MappedMemory::create_shared(count * kExtentBytes);
    if (!memory) return nullptr;
    region = std::make_unique<Region>();
    region->memory = std::move(*memory);
    for (size_t i = 0; i < count; ++i) {
      StoreExtent& extent = region->extents[i];
      extent.owner = this;
      extent.data = region->memory.bytes().data() + i * kExtentBytes;
      extent.descriptor = region->memory.descriptor();
      extent.region = static_cast<uint32_t>(region_number);
      extent.number = static_cast<uint32_t>(first + i);
    }
    ++unused_regions_;
    if (region_mapped_) {
      region_mapped_(static_cast<uint32_t>(region_number), region->memory.bytes());
    }
  }
  const uint32_t number = fresh_.back();
  fresh_.pop_back();
  return &region->extents[number % kExtentsPerRegion];
}

void StoreMemory::return_extent_locked(StoreExtent* extent) {
  assert(extent->owner == this && used_extents_ > 0 && region_of(*extent).used_extents > 0 &&
         "an extent was returned twice");
  --used_extents_;
  returned_.push_back(extent);
  if (--region_of(*extent).used_extents > 0) return;
  ++unused_regions_;
  if (give_back_due_locked()) changed_.notify_all();
}

void StoreMemory::free_block(StoreExtent* extent, uint32_t index) {
  MutexLock lock(mutex_);
  if (extent->block_bytes == kExtentBytes) {
    return_extent_locked(extent);
  } else {
    auto& not_full = slabs_[slab_class(extent->block_bytes)].not_full;
    assert((extent->free_map[index / 64] & uint64_t{1} << (index % 64)) == 0 &&
           "a block was freed twice");
    extent->free_map[index / 64] |= uint64_t{1} << (index % 64);
    if (++extent->free_blocks == 1) not_full.push_back(extent);
    if (extent->free_blocks == extent->block_count()) {
      not_full.erase(std::find(not_full.begin(), not_full.end(), extent));
      return_extent_locked(extent);
    }
  }
  note_freed_locked();
}

// If an allocation has failed, makes the thread of the store call space_freed_.
void StoreMemory::note_freed_locked() {
  if (!starved_) return;
  starved_ = false;
  notify_freed_ = true;
  changed_.notify_all();
}

StoreUse StoreMemory::begin_use() {
  MutexLock lock(mutex_);
  ++uses_;
  return StoreUse(this);
}

StoreUse::~StoreUse() {
  if (memory_ == nullptr) return;
  MutexLock lock(memory_->mutex_);
  memory_->note_use();
  assert(memory_->uses_ > 0 && "a use ended twice");
  if (--memory_->uses_ == 0) memory_->changed_.notify_all();
}

// ---- The thread --------------------------------------------------------------------------------

bool StoreMemory::touch_due_locked() const {
  return ready_extents_locked() < ready_extents_ &&
         limit_extents_ - fresh_.size() < extents_max_locked();
}

// The reserve stays whole. Otherwise the thread would touch new memory right after it gives memory
// back.
bool StoreMemory::give_back_due_locked() const {
  return gives_back_ && unused_regions_ > 0 &&
         ready_extents_locked() >= ready_extents_ + kExtentsPerRegion;
}

bool StoreMemory::is_scarce_locked() const {
  return ready_extents_locked() < ready_extents_ / kScarcePart;
}

// Calls space_freed_ after space was freed, and keeps the reserve at its level.
void StoreMemory::keep_reserve() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) {
      return stopping_ || notify_freed_ || touch_due_locked() || give_back_due_locked();
    });
    if (stopping_) return;
    if (std::exchange(notify_freed_, false)) {
      lock.unlock();
      if (space_freed_) space_freed_();
      lock.lock();
      continue;
    }
    // While bytes arrive or are read, leave the cores to that work unless memory is scarce.
    const bool gives = give_back_due_locked();
    const auto idle_at =
        used_at_.load(std::memory_order_relaxed) + (gives ? give_back_after_ : kIdle);
    const auto has_work = [&]() PPMR_REQUIRES(mutex_) {
      return stopping_ || notify_freed_ || is_scarce_locked() || give_back_due_locked() != gives;
    };
    if (uses_ > 0 && !is_scarce_locked()) {
      changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) { return uses_ == 0 || has_work(); });
    } else if (!is_scarce_locked() && std::chrono::steady_clock::now() < idle_at) {
      changed_.wait_until(mutex_, idle_at, has_work);
    } else if (gives) {
      give_region_back();
    } else {
      touch_extent();
    }
  }
}

void StoreMemory::touch_extent() {
  StoreExtent* extent = fresh_extent_locked();
  if (extent == nullptr) {  // no address space: continue with the regions that exist
    changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return stopping_ || notify_freed_; });
    return;
  }
  touching_ = true;
  mutex_.unlock();
  MappedMemory::make_huge({extent->data, kExtentBytes});
  MappedMemory::touch({extent->data, kExtentBytes});
  mutex_.lock();
  touching_ = false;
  touched_.push_back(extent);
  changed_.notify_all();
}

// Gives the last region back first, because new extents come from the first regions.
void StoreMemory::give_region_back() {
  const auto found = std::find_if(regions_.rbegin(), regions_.rend(), [](const auto& region) {
    return region && region->used_extents == 0;
  });
  assert(found != regions_.rend() && unused_regions_ > 0 && "no region is unused");
  const auto number = static_cast<uint32_t>(regions_.rend() - found - 1);
  const auto is_in_region = [number](const StoreExtent* extent) {
    return extent->region == number;
  };
  for (auto* free : {&touched_, &returned_}) {
    for (const StoreExtent* extent : *free) {
      if (is_in_region(extent)) fresh_.push_back(extent->number);
    }
    std::erase_if(*free, is_in_region);
  }
  --unused_regions_;
  const std::unique_ptr<Region> given_back = std::move(*found);
  mutex_.unlock();  // unmapping takes milliseconds
  given_back->memory = {};
  mutex_.lock();
}

StoreCounters StoreMemory::counters() const {
  MutexLock lock(mutex_);
  return {limit_extents_ * kExtentBytes, used_extents_ * kExtentBytes, charged_bytes_,
          ready_extents_locked() * kExtentBytes, ready_extents_ * kExtentBytes};
}

}  // namespace ppmr
