// Descriptors for those who need one for each of many things: 1024 is the usual limit.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace ppmr {

// As far as this user may, and inherited by children: a restored process gets its own limit back.
inline void raise_descriptor_limit() {
  constexpr rlim_t kDescriptorsMax = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kDescriptorsMax) return;
  limit.rlim_cur = std::min(limit.rlim_max, kDescriptorsMax);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace ppmr
