// Which bytes of which files the announced chunks of a session are. A chunk that touches bytes of
// an earlier one has to wait for it: later bytes win.
//
// Memory for all slots from the beginning. A look costs as much as there are chunks around the same
// place of a file, not as there are slots: chunks are found by the blocks of the file that they
// touch. A block is as long as the longest chunk, so that there are two at most.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ppmr {

// Threads: one at a time.
class AnnouncedRanges {
 public:
  struct Range {
    uint64_t node = 0;
    uint64_t begin = 0;
    uint64_t end = 0;  // behind the last byte
  };

  AnnouncedRanges(size_t slot_count, size_t chunk_size_bytes);

  // Behind all that were added before. The slot is not in use, and the range is at most a chunk
  // long.
  void add(uint32_t slot, const Range& range);
  void remove(uint32_t slot);

  const Range& operator[](uint32_t slot) const { return entries_[slot].range; }
  // Whether bytes of the slot's chunk are those of one that was added before it.
  bool overlaps_earlier(uint32_t slot) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kBlocksMax = 2;

  // In the list of one bucket. Links are numbered: slot * kBlocksMax + which of its blocks.
  struct Link {
    uint32_t bucket = kNone;
    uint32_t previous = kNone;
    uint32_t next = kNone;
  };
  struct Entry {
    Range range;
    uint64_t order = 0;
  };

  uint32_t bucket_of(uint64_t node, uint64_t block) const;
  void link(uint32_t number, uint32_t bucket);
  void unlink(uint32_t number);
  bool overlaps_earlier_in(uint32_t bucket, const Entry& mine) const;

  const int block_bits_;
  const int bucket_bits_;
  std::vector<Entry> entries_;         // by slot
  std::vector<Link> links_;            // by number
  std::vector<uint32_t> first_links_;  // by bucket
  uint64_t last_order_ = 0;
};

}  // namespace ppmr
