// Upper bounds of the histogram buckets, in seconds. The bucket behind the last bound is implied.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ppmr {

// Buckets for phases of a migration: from a process of a few MiB to one of many GiB on a slow link.
inline constexpr std::array kPhaseBoundsS = {0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                             1.0,  2.5,   5.0,  10.0, 30.0, 120.0};
// Buckets for page faults: from a page that is in memory to a page that waits for a retransmission.
inline constexpr std::array kFaultBoundsS = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005,
                                             0.001,   0.0025,   0.005,   0.01,   0.05,    0.25};

// How long page faults took. Threads: one at a time.
struct FaultTimes {
  std::array<uint64_t, kFaultBoundsS.size() + 1> buckets{};  // not cumulative
  double sum_s = 0;

  void add(std::chrono::nanoseconds time) {
    const double seconds = std::chrono::duration<double>(time).count();
    const auto bucket = std::lower_bound(kFaultBoundsS.begin(), kFaultBoundsS.end(), seconds);
    ++buckets[static_cast<size_t>(bucket - kFaultBoundsS.begin())];
    sum_s += seconds;
  }
};

}  // namespace ppmr
