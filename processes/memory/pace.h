// Keeps the reading of memory below a rate, and below a share of a processor.
//
// Both stand in files, so that they can be changed while memory is read: bytes per second, and
// percent of one processor. No file, or 0, is no limit. In a third file a number other than 0
// pauses the reading.
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

  // Returns until when to wait after `bytes` were read at `now`. Waits do not add up to more than
  // the bytes take at the rate, and time in which nothing was read is not made up for.
  Time wait_until(uint64_t bytes, uint64_t rate_bytes_per_s, Time now);

 private:
  Time free_at_;  // when the rate allows the next read
};

// How long to rest after `worked`, a time of processors that was used within `elapsed`, so that
// both together are at most `percent` of one processor. Pure. `percent`: 1 to 100; 0: no limit.
std::chrono::nanoseconds rest_after(std::chrono::nanoseconds worked,
                                    std::chrono::nanoseconds elapsed, uint64_t percent);

// The file beside that of the share: the nanoseconds that the last reading has rested for it.
inline constexpr const char* kRestedSuffix = "-rested";

// A number of the file of the pause.
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
  // Blocks after `bytes` were read, and as long as there is a pause; shorter if a limit is raised
  // meanwhile. `others`: the time of processors that other processes used to send what was read.
  // Returns false if nobody wants more: the other end of `socket` (-1: none) is closed, the file of
  // the pause has kReadNoMore, or the parent of this process has ended during a pause.
  bool wait_after(uint64_t bytes, std::chrono::nanoseconds others = {}, int socket = -1);

 private:
  bool wait(uint64_t bytes, std::chrono::nanoseconds worked, int socket);

  PaceFiles files_;
  pid_t parent_ = getppid();
  Pace pace_;
  Pace::Time resumed_at_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds used_before_ = processor_time();  // when the last wait ended
  std::chrono::nanoseconds rested_{0};                       // for the share, in all
};

}  // namespace ppmr
