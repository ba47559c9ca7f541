// Keeps the reading of memory below a rate, and below a share of a processor.
//
// Both limits are in files, so that ppmr can change them while it reads memory: bytes per second,
// and percent of one processor. Without a file, or with 0, there is no limit. A third file pauses
// the reading while it has a number other than 0.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/processor_time.h"

namespace ppmr {

// Decides how long to wait; pure. Threads: one.
class Pace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Returns until when to wait after `bytes` were read at `now`. The waits together are not longer
  // than the bytes take at the rate. Time in which nothing was read gives no credit.
  Time wait_until(uint64_t bytes, uint64_t rate_bytes_per_s, Time now);

 private:
  Time free_at_;  // when the rate allows the next read
};

// Returns how long to rest after `worked`, a processor time used within `elapsed`, so that `worked`
// is at most `percent` of one processor over `elapsed` and the rest together. Pure. `percent`: 1 to
// 100; 0: no limit.
std::chrono::nanoseconds rest_after(std::chrono::nanoseconds worked,
                                    std::chrono::nanoseconds elapsed, uint64_t percent);

// The suffix of the name of a file beside the file of the share. The file has the nanoseconds that
// the last reading has rested for the share.
inline constexpr const char* kRestedSuffix = "-rested";

// The number in the pause file that ends the reading.
inline constexpr uint64_t kReadNoMore = 1;

// Paths; empty: there is no limit, or no pause.
struct PaceFiles {
  std::string rate = {};
  std::string cpu_share = {};
  std::string pause = {};
};

// Reads at the pace of these files. Threads: one.
class PacedReading {
 public:
  explicit PacedReading(PaceFiles files) : files_(std::move(files)) {}
  // Blocks after `bytes` were read for as long as the limits require, and during a pause. A raised
  // limit shortens the wait. `others`: the processor time that other processes used to send the
  // bytes. Returns false if the reading must end: the other end of `socket` (-1: none) is closed,
  // the file of the pause has kReadNoMore, or the parent of this process has ended during a pause.
  bool wait_after(uint64_t bytes, std::chrono::nanoseconds others = {}, int socket = -1);

 private:
  bool wait(uint64_t bytes, std::chrono::nanoseconds worked, int socket);

  PaceFiles files_;
  pid_t parent_ = getppid();
  Pace pace_;
  Pace::Time resumed_at_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds used_before_ = processor_time();  // when the last wait ended
  std::chrono::nanoseconds rested_{0};                       // sum of all rests for the share
};

}  // namespace ppmr
