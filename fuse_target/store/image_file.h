// The bytes of one file of a checkpoint: where they are stored, which have arrived, which are in
// flight.
//
// clang-format off
//   windows of 2 MiB            | 0                   | 1             | 2 ...
//   usual file                  | one block           | one block     |
//   first window, small file    |4K|4K|8K|16K|...|1M  |
// clang-format on
//
// A block is allocated when the first byte of its range arrives. It is not cleared: outside the
// arrived ranges it holds bytes of earlier files. Readers get arrived ranges from blocks and zeros
// for everything else. So zeros that the source announces need no block: they are a set of ranges
// for which no reader waits.
//
// Files: image_file.cc (arrival), image_file_read.cc (reading; freeing consumed bytes),
// image_file_loan.cc (lending).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fuse_target/store/file_loan.h"
#include "fuse_target/store/range_set.h"
#include "fuse_target/store/read_plan.h"
#include "fuse_target/store/spill_file.h"
#include "fuse_target/store/store_memory.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

// Where files store their bytes. Constant; outlives the files.
struct ImageStorage {
  StoreMemory& memory;
  SpillDirectory* spill = nullptr;  // null: no spilling
  bool consume = false;             // frees bytes once they are read; reads must be sequential
};

inline constexpr uint32_t kChunkMaxBytes = kExtentBytes;

// Threads: any. The mutex is not held across disk or network I/O.
class ImageFile {
 public:
  struct Facts {
    uint64_t size_bytes = 0;    // grows until `closed`
    bool closed = false;        // the writer has closed the file: the size is final
    bool in_flight = false;     // chunks are announced and have not landed
    uint64_t digest = 0;        // sum of the digests of all landed chunks
    uint64_t stored_bytes = 0;  // without holes
  };
  enum class Readiness {
    kReady,
    kWait,  // bytes of the range have not arrived yet
  };

  explicit ImageFile(const ImageStorage& storage) : storage_(storage) {}

  // A chunk passes through announce(), reserve() and land(), see Sink. retract() undoes announce();
  // abandon() undoes announce() and reserve(). Errors of announce(): EMSGSIZE when the length or
  // the offset is out of range.
  Status announce(uint64_t offset, uint32_t length);
  void retract(uint64_t offset, uint32_t length);
  // Reserves memory and describes it in the pieces of `landing`, which hold references to blocks
  // until land() or abandon(). Errors: EAGAIN and ENOSPC as in Sink::reserve(); ESPIPE for bytes
  // that were consumed.
  Status reserve(Landing& landing);
  // Keeps memory for `size_bytes` from the beginning of the file, until it is closed or discarded,
  // so that chunks get it however much others store meanwhile. With a spill directory what memory
  // lacks is left to the disk. Errors: ENOSPC.
  Status promise(uint64_t size_bytes);
  // land() and abandon() release the landing's references to blocks, land() also on error. Errors
  // of land(): ENOSPC, EIO.
  Status land(const Landing& landing, uint64_t chunk_digest);
  void abandon(const Landing& landing);
  // Releases the landing's references to blocks, even if its file was removed meanwhile.
  static void release(StoreMemory& memory, const Landing& landing);

  void truncate(uint64_t size_bytes);
  void punch_hole(uint64_t offset, uint64_t length_bytes);
  // These bytes are zero and have arrived, unless other bytes land there, before or after. Takes no
  // memory.
  void zeros(uint64_t offset, uint64_t length_bytes);
  void open_for_write();
  void close(uint64_t size_bytes);
  // Frees the memory; later reads are invalid. Returns the spill file: closing it can take seconds,
  // so the caller drops it with no lock held.
  [[nodiscard]] std::shared_ptr<SpillFile> discard();

  // Plans the answer to a read: the whole range, or the part before the end of a closed file.
  // Errors: ESPIPE when consuming and `offset` is not where the last read ended.
  Result<Readiness> read(uint64_t offset, size_t length, ReadPlan& plan);
  // Plans a read back: arrived bytes, zeros for the rest, up to the present end. Errors: EAGAIN
  // while chunks of the range are in flight, ESPIPE for bytes that were consumed.
  Status read_back(uint64_t offset, size_t length, ReadPlan& plan);

  // Lends the bytes from `offset` to the loan's `end`. The blocks keep their bytes while the loan
  // exists, whatever happens to the file. The caller ensures that these bytes do not change any
  // more. Errors: EBUSY for a file that is not complete, EOPNOTSUPP with `consume`.
  Result<FileLoan> lend(uint64_t offset);
  // The same for a file that is not complete: only whole windows, up to the first one that has not
  // arrived, so `end` may be `offset`. Errors: EOPNOTSUPP with `consume`.
  Result<FileLoan> lend_arrived(uint64_t offset);

  // The bytes from the first to the last one of the range for which a reader waits and which are
  // not announced; empty if there are none.
  Range missing(uint64_t offset, size_t length) const;

  Facts facts() const;

 private:
  // A range of the file. Its bytes are in `block`, or in the spill file if `spilled`. With neither,
  // nothing has arrived.
  struct Segment {
    BlockRef block;
    bool spilled = false;
  };
  static constexpr size_t kSeriesLength = 10;  // 4K 4K 8K ... 1M
  using Series = std::array<Segment, kSeriesLength>;
  struct Place {
    Segment* segment = nullptr;  // null: nothing has arrived
    Range covers;
  };

  Place place_locked(uint64_t offset);
  Place make_place_locked(uint64_t offset);
  void drop_segments_locked(Range range);
  void retract_locked(uint64_t offset, uint32_t length);
  bool in_flight_locked(Range range) const;
  bool arrived_locked(Range range) const;
  uint64_t known_end_locked() const;
  FileLoan lend_locked(Range range);
  uint64_t arrived_end_locked(uint64_t offset) const;
  bool is_in_place_locked(const Landing& landing);
  void plan_locked(Range range, ReadPlan& plan);
  void consume_locked(uint64_t end);

  const ImageStorage& storage_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<Series> series_;       // the first 2 MiB of a file that began small; else null
  std::map<uint64_t, Segment> windows_;  // other windows of 2 MiB, by number; one allocation each
  std::shared_ptr<SpillFile> spill_file_;
  StoreCharge promised_;  // for windows without a block
  RangeSet arrived_;      // as chunks
  RangeSet zeros_;  // zeros() has announced them; where arrived_ has the same bytes, these count
  std::vector<Range> in_flight_;  // in the order of their announcements
  uint64_t size_bytes_ = 0;
  bool closed_ = false;
  uint64_t digest_ = 0;
  uint64_t consumed_end_ = 0;  // with `consume`: where the last read ended
  bool order_error_logged_ = false;
};

}  // namespace ppmr
