#include "fuse_source/slot_buffers.h"

#include <utility>

namespace ppmr {

namespace {
// While the stream flows a slot comes back much sooner. A stalled one shall not be noticed by `ls`,
// so only the first request that finds it stalled waits for long. The others wait a little: who
// never waits gets none of the slots of a stream that flows again, with writers waiting for them.
constexpr std::chrono::milliseconds kSlotPatience{20};
constexpr std::chrono::milliseconds kStalledPatience{1};
}  // namespace

class SlotBuffers::Buffer final : public RequestBuffer {
 public:
  explicit Buffer(SlotBuffers& owner) : owner_(owner) {}

  std::span<std::byte> take() override {
    if (owner_.ready_) {
      const bool stalled = owner_.stalled_;
      lease_ = owner_.pool_.acquire(stalled ? kStalledPatience : kSlotPatience);
      if (stalled == static_cast<bool>(lease_)) owner_.stalled_ = !stalled;
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
