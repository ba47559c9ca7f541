// The receives that are posted to a shared receive queue. They complete in any order, because
// several queue pairs take them. So they are not in a ring.
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
  uint64_t number = 0;  // grows in the order of posting
  int piece_count = 0;
  bool is_posted = false;  // posted, and the library has not seen its completion
};

// The free slots are in a stack, so that posting allocates no memory. Threads: any, see the
// members.
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
  // Returns the posted receives in the order of posting.
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
  FastLock lock;  // threads take it after all other locks
  std::vector<SharedSlot> slots;
  std::vector<SharedSlot*> free_slots;  // guarded by lock
  std::vector<ibv_sge> pieces;          // with the keys that programs know
};

}  // namespace ppmr::verbs
