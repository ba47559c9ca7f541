#include "fuse_source/slot_buffers.h"

#include <sys/mman.h>

#include <utility>

namespace ppmr {

namespace {
// kSlotPatience is how long a worker waits for the slot of its next request. While the target
// releases slots, a slot becomes free much sooner. While the target releases none (the stream is
// stalled), requests that need no slot, such as those of `ls`, must not be delayed. So only the
// first worker that gets no slot waits for kSlotPatience; the others wait for kStalledPatience.
// kStalledPatience is not zero, because a released slot goes only to a caller that is already
// waiting.
constexpr std::chrono::milliseconds kSlotPatience{20};
constexpr std::chrono::milliseconds kStalledPatience{1};
// While the stream is stalled and more than kLineMax callers wait for a slot, a worker does not
// wait at all: it would get no slot within kStalledPatience.
constexpr size_t kLineMax = 4;

// Gives the whole pages in [begin, end) back to the kernel. Later reads of these pages return
// zeros.
void drop_pages(const std::byte* begin, const std::byte* end) {
  const auto first =
      (reinterpret_cast<uintptr_t>(begin) + kPageSizeBytes - 1) / kPageSizeBytes * kPageSizeBytes;
  const auto last = reinterpret_cast<uintptr_t>(end) / kPageSizeBytes * kPageSizeBytes;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}
}  // namespace

class SlotBuffers::Buffer final : public RequestBuffer {
 public:
  explicit Buffer(SlotBuffers& owner) : owner_(owner) {}

  std::span<std::byte> take() override {
    const bool stalled = owner_.stalled_;
    if (owner_.ready_ && !(stalled && owner_.pool_.waiting() > kLineMax)) {
      lease_ = owner_.pool_.acquire(stalled ? kStalledPatience : kSlotPatience);
      if (stalled == static_cast<bool>(lease_)) owner_.stalled_ = !stalled;
    }
    if (lease_) {
      owner_.borrowers_[lease_.index()] = this;
      return lease_.request_area();
    }
    if (spare_.bytes().empty()) {
      auto mapped = MappedMemory::create(kRequestMinBytes);
      if (!mapped) return {};
      spare_ = std::move(*mapped);
      // Most requests touch only one page, so a huge page would waste memory.
      ::madvise(spare_.bytes().data(), spare_.bytes().size(), MADV_NOHUGEPAGE);
    }
    spare_used_ = true;
    return spare_.bytes().first(kRequestMinBytes);
  }
  void give_back() override {
    lease_.release();
    if (!std::exchange(spare_used_, false)) return;
    drop_pages(spare_.bytes().data(), spare_.bytes().data() + spare_.bytes().size());
  }
  SlotLease adopt() { return std::exchange(lease_, {}); }

 private:
  SlotBuffers& owner_;
  SlotLease lease_;     // lease of the slot that contains the request; empty after adopt()
  MappedMemory spare_;  // mapped at its first use; occupies memory only while it contains a request
  bool spare_used_ = false;
};

std::unique_ptr<RequestBuffer> SlotBuffers::make() { return std::make_unique<Buffer>(*this); }

SlotLease SlotBuffers::adopt(const void* payload) {
  const auto slot = pool_.slot_at(payload);
  return slot ? borrowers_[*slot]->adopt() : SlotLease{};
}

KeptBytes SlotBuffers::keep(std::span<const std::byte> bytes) {
  if (bytes.size() <= kKeptSmallBytes) return {nullptr, bytes};
  if (kept_bytes_.fetch_add(bytes.size()) + bytes.size() <= kKeptMaxBytes) return {this, bytes};
  kept_bytes_ -= bytes.size();
  drop_pages(bytes.data() + kKeptSmallBytes, bytes.data() + bytes.size());
  return {nullptr, bytes.first(kKeptSmallBytes)};
}

KeptBytes::~KeptBytes() {
  if (owner_ != nullptr) owner_->kept_bytes_ -= bytes_.size();
}

}  // namespace ppmr
