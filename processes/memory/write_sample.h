// How much memory running trees write, for the estimate of a move that has not begun. Uses the
// tracker of the move itself (write_tracker.h), so memory that this tracker cannot track cannot be
// sampled, either. One thread of each process stands still for some hundred microseconds; nothing
// is copied, and nothing stays in the process.
//
// Rejected: to read random pages twice and compare them. This stops no thread, but a program that
// writes the same values again would look idle.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "base/result.h"

namespace ppmr {

// How many different bytes (whole pages) a tree has written after a time.
struct WrittenAfter {
  std::chrono::nanoseconds after{0};
  uint64_t bytes = 0;
};

struct WriteSample {
  uint64_t memory_bytes = 0;          // what a first round would copy
  std::vector<WrittenAfter> written;  // by time; the number never falls
};

// Samples all trees at the same time, for most of a second. Each has its own result. `releasers`:
// see LiveMemory::expect_release_of(). Errors of a tree: those of LiveMemory::next_round().
// Threads: any.
std::vector<Result<WriteSample>> sample_writes(const std::vector<pid_t>& roots,
                                               const std::set<pid_t>& releasers = {});

}  // namespace ppmr
