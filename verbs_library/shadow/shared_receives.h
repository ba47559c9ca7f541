// What is posted to a shared receive queue. Its receives complete in any order, because the queue
// pairs that share it take them, so it is no ring.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "verbs_library/shadow/fast_lock.h"

namespace ppmr::verbs {

struct SharedReceives;

// A receive that was posted to a shared receive queue.
struct SharedSlot {
  uint64_t shown_id = 0;
  SharedReceives* owner = nullptr;
  uint64_t number = 0;  // in the order of posting
  int piece_count = 0;
  bool is_posted = false;  // and its completion was not seen
};

// Free slots are a stack, so that posting allocates nothing. Threads: any, see the members.
struct SharedReceives {
  SharedReceives(uint32_t slots_max, uint32_t pieces_max)
      : pieces_max(pieces_max), slots(slots_max), pieces(size_t{slots_max} * pieces_max) {
    for (SharedSlot& slot : slots) {
      slot.owner = this;
      free_slots.push_back(&slot);
    }
  }
  ibv_sge* pieces_of(const SharedSlot& slot) {
    return &pieces[static_cast<size_t>(&slot - slots.data()) * pieces_max];
  }
  SharedSlot* take() {
    const std::lock_guard guard(lock);
    if (free_slots.empty()) return nullptr;
    SharedSlot* slot = free_slots.back();
    free_slots.pop_back();
    slot->is_posted = true;
    return slot;
  }
  void release(SharedSlot& slot) {
    const std::lock_guard guard(lock);
    slot.is_posted = false;
    free_slots.push_back(&slot);
  }
  // In the order of posting.
  std::vector<SharedSlot*> posted() {
    const std::lock_guard guard(lock);
    std::vector<SharedSlot*> found;
    for (SharedSlot& slot : slots) {
      if (slot.is_posted) found.push_back(&slot);
    }
    std::sort(found.begin(), found.end(),
              [](const SharedSlot* a, const SharedSlot* b) { return a->number < b->number; });
    return found;
  }

  const uint32_t pieces_max;
  FastLock lock;  // the innermost of all
  std::vector<SharedSlot> slots;
  std::vector<SharedSlot*> free_slots;  // guarded by lock
  std::vector<ibv_sge> pieces;          // with the keys that programs know
};

}  // namespace ppmr::verbs
