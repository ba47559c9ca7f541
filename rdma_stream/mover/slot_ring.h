// A queue of slot numbers with room for all slots, so no operation allocates.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ppmr {

class SlotRing {
 public:
  explicit SlotRing(size_t capacity) : slots_(capacity) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  void push_back(uint32_t slot) {
    assert(size_ < slots_.size());
    slots_[(first_ + size_++) % slots_.size()] = slot;
  }
  void push_front(uint32_t slot) {
    assert(size_ < slots_.size());
    first_ = (first_ + slots_.size() - 1) % slots_.size();
    slots_[first_] = slot;
    ++size_;
  }
  uint32_t pop_front() {
    assert(size_ > 0);
    const uint32_t slot = slots_[first_];
    first_ = (first_ + 1) % slots_.size();
    --size_;
    return slot;
  }
  uint32_t pop_back() {
    assert(size_ > 0);
    return slots_[(first_ + --size_) % slots_.size()];
  }
  template <typename Predicate>
  bool any_of(Predicate matches) const {
    for (size_t i = 0; i < size_; ++i) {
      if (matches(slots_[(first_ + i) % slots_.size()])) return true;
    }
    return false;
  }
  // Moves the slots for which `matches` is true to the end of `other`. Both keep their order.
  template <typename Predicate>
  void move_to(SlotRing& other, Predicate matches) {
    for (size_t left = size_; left > 0; --left) {
      const uint32_t slot = pop_front();
      (matches(slot) ? other : *this).push_back(slot);
    }
  }

 private:
  std::vector<uint32_t> slots_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace ppmr
