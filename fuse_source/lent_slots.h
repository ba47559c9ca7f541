// Keeps slots that a page reader may still write to after the daemon has stopped waiting for its
// reply: the reader is stopped or slow, or the transfer has failed. If the daemon used such a slot
// again, the reader could write the memory of another process into it.
#pragma once

#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "buffer_pool/buffer_pool.h"

namespace ppmr {

// Threads: any. The pool must live longer than this object.
class LentSlots {
 public:
  LentSlots() = default;
  LentSlots(const LentSlots&) = delete;
  LentSlots& operator=(const LentSlots&) = delete;
  ~LentSlots();

  // Keeps the slot until the reader at the other end of `socket` has replied or ended. Throws
  // std::system_error when the thread cannot be started; the slot is then never used again.
  void keep(SlotLease lease, UniqueFd socket);

 private:
  struct Lent {
    SlotLease lease;
    UniqueFd socket;
  };
  void watch();

  UniqueFd wake_;  // eventfd; constant once the thread runs
  Mutex mutex_;
  std::vector<Lent> lent_ PPMR_GUARDED_BY(mutex_);
  bool ends_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // runs from the first keep() on
};

}  // namespace ppmr
