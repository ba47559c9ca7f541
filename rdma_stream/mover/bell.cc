#include "rdma_stream/mover/bell.h"

#include <sys/eventfd.h>

namespace ppmr {

Result<Bell> Bell::create() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return system_failure("make eventfd", "");
  return Bell(std::move(event));
}

void Bell::ring() const { ::eventfd_write(event_.get(), 1); }

void Bell::silence() const {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

}  // namespace ppmr
