#include "rdma_stream/session/announced_ranges.h"

#include <bit>
#include <cassert>

namespace ppmr {

AnnouncedRanges::AnnouncedRanges(size_t slot_count, size_t chunk_size_bytes)
    : block_bits_(std::bit_width(std::bit_ceil(chunk_size_bytes)) - 1),
      bucket_bits_(std::bit_width(std::bit_ceil(slot_count)) - 1),
      entries_(slot_count),
      links_(slot_count * kBlocksMax),
      first_links_(size_t{1} << bucket_bits_, kNone) {}

// Fibonacci hashing: the golden ratio spreads neighbouring blocks and nodes.
uint32_t AnnouncedRanges::bucket_of(uint64_t node, uint64_t block) const {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  const uint64_t mixed = (node * kGoldenRatio + block) * kGoldenRatio;
  return bucket_bits_ == 0 ? 0 : static_cast<uint32_t>(mixed >> (64 - bucket_bits_));
}

void AnnouncedRanges::add(uint32_t slot, const Range& range) {
  entries_[slot] = {range, ++last_order_};
  const uint64_t first_block = range.begin >> block_bits_;
  const uint64_t last_block = (range.end - 1) >> block_bits_;
  assert(range.begin < range.end && last_block - first_block < kBlocksMax);
  const uint32_t first_bucket = bucket_of(range.node, first_block);
  const uint32_t last_bucket = bucket_of(range.node, last_block);
  link(slot * kBlocksMax, first_bucket);
  if (last_bucket != first_bucket) link(slot * kBlocksMax + 1, last_bucket);
}

void AnnouncedRanges::remove(uint32_t slot) {
  for (uint32_t number = slot * kBlocksMax; number < (slot + 1) * kBlocksMax; ++number) {
    if (links_[number].bucket != kNone) unlink(number);
  }
}

void AnnouncedRanges::link(uint32_t number, uint32_t bucket) {
  uint32_t& first = first_links_[bucket];
  links_[number] = {bucket, kNone, first};
  if (first != kNone) links_[first].previous = number;
  first = number;
}

void AnnouncedRanges::unlink(uint32_t number) {
  const Link gone = links_[number];
  links_[number] = {};
  if (gone.next != kNone) links_[gone.next].previous = gone.previous;
  (gone.previous != kNone ? links_[gone.previous].next : first_links_[gone.bucket]) = gone.next;
}

bool AnnouncedRanges::overlaps_earlier(uint32_t slot) const {
  for (uint32_t number = slot * kBlocksMax; number < (slot + 1) * kBlocksMax; ++number) {
    const uint32_t bucket = links_[number].bucket;
    if (bucket != kNone && overlaps_earlier_in(bucket, entries_[slot])) return true;
  }
  return false;
}

bool AnnouncedRanges::overlaps_earlier_in(uint32_t bucket, const Entry& mine) const {
  for (uint32_t number = first_links_[bucket]; number != kNone; number = links_[number].next) {
    const Entry& other = entries_[number / kBlocksMax];
    if (other.order < mine.order && other.range.node == mine.range.node &&
        other.range.begin < mine.range.end && mine.range.begin < other.range.end) {
      return true;
    }
  }
  return false;
}

}  // namespace ppmr
