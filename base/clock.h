// The clock that both nodes and restored programs share.
#pragma once

#include <cstdint>
#include <ctime>

namespace ppmr {

// Returns CLOCK_REALTIME in nanoseconds.
inline int64_t realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace ppmr
