// Wakes a thread that waits in poll(2) for this event and for other descriptors.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// A flag with a descriptor. A signal() before poll(2) is not lost, because the descriptor stays
// readable until clear().
//
// Threads: any.
class WakeEvent {
 public:
  // Errors: EMFILE, ENFILE.
  static Result<WakeEvent> create();

  void signal() const;
  void clear() const;
  int fd() const { return event_.get(); }

 private:
  explicit WakeEvent(UniqueFd event) : event_(std::move(event)) {}
  UniqueFd event_;
};

}  // namespace ppmr
