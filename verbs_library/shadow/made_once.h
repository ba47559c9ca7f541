// Makes objects at their first use. They are never destroyed, because threads of the program use
// them until the program ends.
//
// Rejected: static variables of functions. Their guard is in the C++ library that is linked into
// this library, where ThreadSanitizer does not see it.
#pragma once

#include <atomic>

namespace ppmr::verbs {

// Returns the object at `place`, which it makes at the first call. If two threads make it at once,
// the object of one of them remains. `place` must have static storage.
template <typename T, typename Function>
T& made_once(std::atomic<T*>& place, Function make) {
  if (T* made = place.load(std::memory_order_acquire)) return *made;
  T* fresh = make();
  T* expected = nullptr;
  if (place.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *expected;
}

}  // namespace ppmr::verbs
