// Returns the processor time that all threads of this process have used.
#pragma once

#include <time.h>

#include <chrono>

namespace ppmr {

inline std::chrono::nanoseconds processor_time() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace ppmr
