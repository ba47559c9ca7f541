// Raises the limit of open files. Daemons need this because they keep one file open per image, or
// per region of memory. The usual limit is 1024.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace ppmr {

// Returns the limit before this process has raised it.
inline rlimit initial_descriptor_limit() {
  static const rlimit initial = [] {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  return initial;
}

// Raises the soft limit, at most to the hard limit. Children inherit the raised limit; CRIU
// restores the limit of each restored process.
inline void raise_descriptor_limit() {
  constexpr rlim_t kDescriptorsMax = 1 << 16;
  rlimit limit = initial_descriptor_limit();
  if (limit.rlim_cur >= kDescriptorsMax) return;
  limit.rlim_cur = std::min(limit.rlim_max, kDescriptorsMax);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace ppmr
