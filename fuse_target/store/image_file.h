// The bytes of one file of a checkpoint: where they lie, which of them have arrived, which are
// still under way.
//
//   windows of 2 MiB      | 0             | 1             | 2 ...
//   whole                 | one block     | one block     |
//   a small file's first  |4K|4K|8K| 16K | ... | 1M |       made only where bytes arrive
//
// A block may hold bytes of an earlier file where nothing has arrived yet: a reader is given
// arrived ranges from blocks, and zeros for everything else.
//
// Two files: image_file.cc (arrival), image_file_read.cc (reading, and freeing behind a reader).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fuse_target/store/range_set.h"
#include "fuse_target/store/read_plan.h"
#include "fuse_target/store/spill_file.h"
#include "fuse_target/store/store_memory.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

// Where files get memory from. Constant; outlives them.
struct ImageStorage {
  StoreMemory& memory;
  SpillDirectory* spill = nullptr;  // null: what finds no memory is refused
  bool consume = false;             // free what was read, readers are strictly sequential
};

inline constexpr uint32_t kChunkMaxBytes = kExtentBytes;

// Threads: any. No call waits for a disk or a peer with the mutex held.
class ImageFile {
 public:
  struct Facts {
    uint64_t size_bytes = 0;  // as far as it is known
    bool closed = false;      // the size is final
    bool under_way = false;   // chunks are announced and have not landed
    uint64_t digest = 0;
    uint64_t stored_bytes = 0;  // arrived, and not a hole
  };
  enum class Readiness {
    kReady,
    kWait,  // bytes of the range are still to come
  };

  explicit ImageFile(const ImageStorage& storage) : storage_(storage) {}

  // Arrival, see Sink. Errors: EMSGSIZE for a chunk longer than kChunkMaxBytes.
  Status announce(uint64_t offset, uint32_t length);
  void retract(uint64_t offset, uint32_t length);
  // Fills the landing's pieces; it holds references until land() or give_up().
  // Errors: EAGAIN, ENOSPC as Sink::reserve(); ESPIPE for bytes already consumed.
  Status reserve(Landing& landing);
  // The landing is used up in any case.
  Status land(const Landing& landing, uint64_t chunk_digest);
  void give_up(const Landing& landing);
  // Drops the references of a landing whose file is gone.
  static void release(StoreMemory& memory, const Landing& landing);

  void truncate(uint64_t size_bytes);
  void punch_hole(uint64_t offset, uint64_t length_bytes);
  void open_for_write();
  void close(uint64_t size_bytes);
  // Nobody will read it again: its memory is free for others.
  void discard();

  // Plans the answer to a read: all of the range, less only at the end of a closed file (nothing
  // past it). Errors: ESPIPE when consuming and this is not where the reader stopped.
  Result<Readiness> read(uint64_t offset, size_t length, ReadPlan& plan);
  // What is there now, zeros elsewhere, up to the end. Errors: EAGAIN while chunks of the range are
  // under way, ESPIPE for bytes already consumed.
  Status read_back(uint64_t offset, size_t length, ReadPlan& plan);

  Facts facts() const;

 private:
  // A stretch of the file that lies in one block. Absent: no block and not spilled.
  struct Segment {
    BlockRef block;
    bool spilled = false;
  };
  static constexpr size_t kSeriesLength = 10;  // 4K 4K 8K ... 1M
  using Series = std::array<Segment, kSeriesLength>;
  struct Place {
    Segment* segment = nullptr;  // null: absent
    Range covers;
  };

  Place place_locked(uint64_t offset);
  Place make_place_locked(uint64_t offset);
  void drop_segments_locked(Range range);
  void retract_locked(uint64_t offset, uint32_t length);
  bool under_way_locked(Range range) const;
  uint64_t known_end_locked() const;
  bool is_in_place_locked(const Landing& landing);
  void plan_locked(Range range, ReadPlan& plan);
  void consume_locked(uint64_t end);

  const ImageStorage& storage_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<Series> series_;       // the first window, where it is cut
  std::map<uint64_t, Segment> windows_;  // by number; one allocation per 2 MiB
  std::shared_ptr<SpillFile> spill_file_;
  RangeSet arrived_;
  std::vector<Range> under_way_;  // announced, in that order, and not landed
  uint64_t size_bytes_ = 0;
  bool closed_ = false;
  uint64_t digest_ = 0;
  uint64_t consumed_end_ = 0;  // where the reader stopped
  bool order_complained_ = false;
};

}  // namespace ppmr
