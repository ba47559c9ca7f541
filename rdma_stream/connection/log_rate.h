// Limits the number of log lines that a peer can cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/mutex.h"

namespace ppmr {

// Allows at most `lines_max` lines in each `interval`. Threads: any.
class LogRate {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LogRate(uint64_t lines_max = 20,
                   std::chrono::milliseconds interval = std::chrono::seconds(10))
      : lines_max_(lines_max), interval_(interval) {}

  // Returns whether the caller may write a line.
  bool allows(Clock::time_point now = Clock::now()) {
    MutexLock lock(mutex_);
    if (now - begin_ >= interval_) {
      begin_ = now;
      lines_ = 0;
    }
    if (lines_ < lines_max_) {
      ++lines_;
      return true;
    }
    ++suppressed_;
    return false;
  }
  // Returns the number of lines that were refused since the last call. Returns 0 while the interval
  // lasts, so the caller reports these lines once.
  uint64_t take_suppressed(Clock::time_point now = Clock::now()) {
    MutexLock lock(mutex_);
    if (now - begin_ < interval_) return 0;
    return std::exchange(suppressed_, 0);
  }

 private:
  const uint64_t lines_max_;
  const std::chrono::milliseconds interval_;
  Mutex mutex_;
  Clock::time_point begin_ PPMR_GUARDED_BY(mutex_){};
  uint64_t lines_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t suppressed_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
