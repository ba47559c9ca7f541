#include "rdma_stream/mover/wake_event.h"

#include <sys/eventfd.h>

namespace ppmr {

Result<WakeEvent> WakeEvent::create() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return system_failure("create an eventfd for", "RDMA connections");
  return WakeEvent(std::move(event));
}

void WakeEvent::signal() const { ::eventfd_write(event_.get(), 1); }

void WakeEvent::clear() const {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

}  // namespace ppmr
