// The bytes of one file of a checkpoint: where they are stored, which have arrived, which are in
// flight.
//
//    clang-format off
//       windows of 2 MiB            | 0                   | 1             | 2 ...
//       usual file                  | one block           | one block     |
//       first window, small file    |4K|4K|8K|16K|...|1M  |
//    clang-format on
//
// A block is allocated when the first byte of its range arrives. It is not cleared: outside the
// arrived ranges it contains bytes of earlier files. Readers get arrived ranges from blocks, and
// zeros for all other ranges. So zeros that the source announces need no block: the file stores
// them as a set of ranges for which no reader waits.
//
// Files: image_file.cc (arrival), image_file_read.cc (reading; freeing consumed bytes),
// image_file_loan.cc (lending), image_file_keep.cc (kept bytes).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "fuse_target/store/file_loan.h"
#include "fuse_target/store/kept_bytes.h"
#include "fuse_target/store/range_set.h"
#include "fuse_target/store/read_plan.h"
#include "fuse_target/store/spill_file.h"
#include "fuse_target/store/store_memory.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

// The places in which files store their bytes. Constant; must live longer than the files.
struct ImageStorage {
  StoreMemory& memory;
  SpillDirectory* spill = nullptr;  // null: no spilling
  bool consume = false;             // a read frees the bytes before it; reads must be sequential
  // Frees memory whose bytes are also on a disk; returns false if there is no such memory. Called
  // without a lock when there is no memory for a chunk.
  std::function<bool()> make_room;
  std::function<uint64_t()> room_to_make;  // bytes that all calls of make_room() can free
};

inline constexpr uint32_t kChunkMaxBytes = kExtentBytes;

// Threads: any. The mutex is not held across disk or network I/O.
class ImageFile {
 public:
  struct Facts {
    uint64_t size_bytes = 0;    // grows until the file is `closed`
    bool closed = false;        // the writer has closed the file: the size is final
    bool in_flight = false;     // chunks are announced that have not landed yet
    uint64_t digest = 0;        // sum of the digests of all landed chunks
    uint64_t stored_bytes = 0;  // the stored bytes, without holes
  };
  enum class Readiness {
    kReady,
    kWait,  // bytes of the range have not arrived yet
  };

  explicit ImageFile(const ImageStorage& storage) : storage_(storage) {}

  // Each chunk passes through announce(), reserve() and land(), see Sink. retract() undoes
  // announce(); abandon() undoes announce() and reserve(). Errors of announce(): EMSGSIZE when the
  // length or the offset is out of range.
  Status announce(uint64_t offset, uint32_t length);
  void retract(uint64_t offset, uint32_t length);
  // Reserves memory and describes it in the pieces of `landing`, which keep references to blocks
  // until land() or abandon(). Errors: EAGAIN and ENOSPC as in Sink::reserve(); ESPIPE for bytes
  // that were consumed.
  Status reserve(Landing& landing);
  // Keeps memory for the first `size_bytes` of the file, until the file is closed or discarded.
  // Chunks of the file then get memory even if other files fill the store. With a spill directory,
  // the disk takes the bytes for which there is no memory. Errors: ENOSPC.
  Status promise(uint64_t size_bytes);
  // land() and abandon() release the landing's references to blocks; land() also does so on error.
  // Errors of land(): ENOSPC, EIO.
  Status land(const Landing& landing, uint64_t chunk_digest);
  void abandon(const Landing& landing);
  // Releases the landing's references to blocks, even if its file has been removed.
  static void release(StoreMemory& memory, const Landing& landing);

  void truncate(uint64_t size_bytes);
  void punch_hole(uint64_t offset, uint64_t length_bytes);
  // Marks these bytes as zero and arrived, except where other bytes land, before or after this
  // call. Takes no memory.
  void zeros(uint64_t offset, uint64_t length_bytes);
  void open_for_write();
  void close(uint64_t size_bytes);
  // Frees the memory; later reads are invalid. Returns the file on the disk, if any: closing it can
  // take seconds, so the caller must destroy it without holding a lock.
  [[nodiscard]] std::shared_ptr<const DiskBytes> discard();

  // Plans the answer to a read: the whole range, or the part before the end of a closed file.
  // Errors: ESPIPE if the store consumes and `offset` is not the end of the last read.
  Result<Readiness> read(uint64_t offset, size_t length, ReadPlan& plan);
  // Plans a read back: arrived bytes, zeros for the other bytes, up to the current end of the file.
  // Errors: EAGAIN while chunks of the range are in flight, ESPIPE for bytes that were consumed.
  Status read_back(uint64_t offset, size_t length, ReadPlan& plan);

  // Lends the bytes from `offset` to the loan's `end`. The blocks keep their bytes while the loan
  // exists, even if the file is removed. The caller ensures that these bytes no longer change.
  // Errors: EBUSY for a file that is not complete, EOPNOTSUPP with `consume`.
  Result<FileLoan> lend(uint64_t offset);
  // Like lend(), but for a file that is not complete. Lends only whole windows, up to the first
  // window that has not arrived, so `end` may be `offset`. Errors: EOPNOTSUPP with `consume`.
  Result<FileLoan> lend_arrived(uint64_t offset);

  // ---- For kept checkpoints.
  // Returns the ranges that arrived as chunks; all other bytes are zeros.
  std::vector<Range> stored_ranges() const;
  // Turns a new, empty file into a closed file of this size with these bytes.
  void restore(KeptBytes kept, uint64_t size_bytes);
  // Frees the memory of a closed file: later reads get the same bytes from `kept`. Returns the file
  // on the disk that had the bytes before, if any, like discard().
  [[nodiscard]] std::shared_ptr<const DiskBytes> read_from(KeptBytes kept);
  // Returns whether bytes of the file are spilled or read from a kept checkpoint.
  bool is_on_disk() const;

  // Returns the bytes from the first to the last byte of the range for which a reader waits and
  // which the source has not announced. Empty if there are no such bytes.
  Range missing(uint64_t offset, size_t length) const;

  Facts facts() const;

 private:
  // A range of the file. Its bytes are in `block`, or in the spill file if `spilled`. If neither is
  // set, no byte of the range has arrived.
  struct Segment {
    BlockRef block;
    bool spilled = false;
  };
  static constexpr size_t kSeriesLength = 10;  // sizes 4K 4K 8K ... 1M
  using Series = std::array<Segment, kSeriesLength>;
  struct Place {
    Segment* segment = nullptr;  // null: no byte has arrived
    Range covers;
  };

  Place place_locked(uint64_t offset) PPMR_REQUIRES(mutex_);
  Place make_place_locked(uint64_t offset) PPMR_REQUIRES(mutex_);
  void drop_segments_locked(Range range) PPMR_REQUIRES(mutex_);
  void retract_locked(uint64_t offset, uint32_t length) PPMR_REQUIRES(mutex_);
  bool in_flight_locked(Range range) const PPMR_REQUIRES(mutex_);
  bool arrived_locked(Range range) const PPMR_REQUIRES(mutex_);
  uint64_t known_end_locked() const PPMR_REQUIRES(mutex_);
  FileLoan lend_locked(Range range) PPMR_REQUIRES(mutex_);
  FileLoan::Piece first_piece_locked(Range part, BlockRef& block) PPMR_REQUIRES(mutex_);
  uint64_t arrived_end_locked(uint64_t offset) const PPMR_REQUIRES(mutex_);
  bool is_in_place_locked(const Landing& landing) PPMR_REQUIRES(mutex_);
  void plan_locked(Range range, ReadPlan& plan) PPMR_REQUIRES(mutex_);
  void plan_kept_locked(Range part, ReadPlan& plan) const PPMR_REQUIRES(mutex_);
  void consume_locked(uint64_t end) PPMR_REQUIRES(mutex_);

  const ImageStorage& storage_;

  mutable Mutex mutex_;
  // The first 2 MiB of a file that began small; else null.
  std::unique_ptr<Series> series_ PPMR_GUARDED_BY(mutex_);
  // The other windows of 2 MiB, by number; each is one allocation.
  std::map<uint64_t, Segment> windows_ PPMR_GUARDED_BY(mutex_);
  std::shared_ptr<SpillFile> spill_file_ PPMR_GUARDED_BY(mutex_);
  // If set, all bytes are in this kept checkpoint, and none in memory or in the spill file.
  std::unique_ptr<const KeptBytes> kept_ PPMR_GUARDED_BY(mutex_);
  StoreCharge promised_ PPMR_GUARDED_BY(mutex_);  // memory for the windows that have no block yet
  RangeSet arrived_ PPMR_GUARDED_BY(mutex_);      // the ranges that arrived as chunks
  // The ranges that zeros() has announced; where arrived_ has the same bytes, arrived_ counts.
  RangeSet zeros_ PPMR_GUARDED_BY(mutex_);
  std::vector<Range> in_flight_ PPMR_GUARDED_BY(mutex_);  // in the order of their announcements
  uint64_t size_bytes_ PPMR_GUARDED_BY(mutex_) = 0;
  bool closed_ PPMR_GUARDED_BY(mutex_) = false;
  uint64_t digest_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t consumed_end_ PPMR_GUARDED_BY(mutex_) =
      0;  // only with `consume`: the end of the last read
  bool order_error_logged_ PPMR_GUARDED_BY(mutex_) = false;
};

}  // namespace ppmr
