#include "rdma_stream/session/outlet.h"

namespace ppmr {

void DiscardOutlet::announce(Chunk chunk) {
  bytes_ += chunk.length;
  ++chunks_;
  chunk.lease.release();
  // The chunk need not wait for its turn, because this outlet sends no announcements.
  chunk.file->verified(chunk.turn, 0);
}

Status DiscardOutlet::seal(wire::Seal) {
  return failure(EOPNOTSUPP, "cannot seal: the mount discards all data (--discard)");
}

Result<size_t> DiscardOutlet::read_back(uint64_t, uint64_t, std::span<std::byte>,
                                        const Interrupted&) {
  return failure(EIO, "cannot read back: the mount discards all data (--discard)");
}

wire::Space DiscardOutlet::space() const {
  return {.total_bytes = uint64_t{1} << 50, .free_bytes = uint64_t{1} << 50};
}

OutletCounters DiscardOutlet::counters() const {
  OutletCounters counters;
  counters.verified_bytes = counters.announced_bytes = bytes_;
  counters.chunks = chunks_;
  counters.connected = true;
  counters.peer = "discard";
  return counters;
}

}  // namespace ppmr
