#include "fuse_source/slot_buffers.h"

namespace ppmr {

namespace {
// While the stream flows a slot comes back much sooner; a stalled one shall not be noticed by `ls`.
constexpr std::chrono::milliseconds kSlotPatience{20};
}  // namespace

std::span<std::byte> SlotBuffers::take() {
  if (ready_) {
    if (SlotLease lease = pool_.acquire(kSlotPatience)) {
      const auto area = lease.request_area();
      lent_[lease.index()] = std::move(lease);
      return area;
    }
  }
  return spare_.take();
}

void SlotBuffers::give_back(std::span<std::byte> buffer) {
  if (auto slot = pool_.slot_at(buffer.data())) {
    // Not ours any more if the request adopted it.
    if (lent_[*slot]) lent_[*slot].release();
  } else {
    spare_.give_back(buffer);
  }
}

SlotLease SlotBuffers::adopt(const void* payload) {
  auto slot = pool_.slot_at(payload);
  return slot ? std::move(lent_[*slot]) : SlotLease{};
}

}  // namespace ppmr
