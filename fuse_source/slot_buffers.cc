#include "fuse_source/slot_buffers.h"

#include <utility>

namespace ppmr {

namespace {
// While the stream flows a slot comes back much sooner. A stalled one shall not be noticed by `ls`,
// so only the first request that finds it stalled waits.
constexpr std::chrono::milliseconds kSlotPatience{20};
}  // namespace

class SlotBuffers::Buffer final : public RequestBuffer {
 public:
  explicit Buffer(SlotBuffers& owner) : owner_(owner) {}

  std::span<std::byte> take() override {
    if (owner_.ready_) {
      lease_ = owner_.stalled_ ? owner_.pool_.try_acquire() : owner_.pool_.acquire(kSlotPatience);
      owner_.stalled_ = !lease_;
    }
    if (lease_) {
      owner_.borrowers_[lease_.index()] = this;
      return lease_.request_area();
    }
    spare_.reset(new std::byte[kRequestMinBytes]);
    return {spare_.get(), kRequestMinBytes};
  }
  void give_back() override {
    lease_.release();
    spare_.reset();
  }
  SlotLease adopt() { return std::exchange(lease_, {}); }

 private:
  SlotBuffers& owner_;
  SlotLease lease_;                     // until it is adopted
  std::unique_ptr<std::byte[]> spare_;  // while there is no slot
};

std::unique_ptr<RequestBuffer> SlotBuffers::make() { return std::make_unique<Buffer>(*this); }

SlotLease SlotBuffers::adopt(const void* payload) {
  const auto slot = pool_.slot_at(payload);
  return slot ? borrowers_[*slot]->adopt() : SlotLease{};
}

}  // namespace ppmr
