// Keeps the reading of memory below a rate.
//
// The rate stands in a file, in bytes per second, so that it can be changed while memory is read.
// No file, or 0, is no limit. In a second file a number other than 0 pauses the reading.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

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

// A number of the second file.
inline constexpr uint64_t kReadNoMore = 1;

// Reads at the rate of a file. Threads: one.
class PacedReading {
 public:
  // Paths of the files; empty: there is no limit, or no pause.
  explicit PacedReading(std::string rate, std::string pause = "")
      : rate_(std::move(rate)), pause_(std::move(pause)) {}
  // Blocks after `bytes` were read, and as long as there is a pause; shorter if the rate is raised
  // meanwhile. Returns false if nobody wants more: the other end of `socket` (-1: none) is closed,
  // the second file has kReadNoMore, or the parent of this process has ended during a pause.
  bool wait_after(uint64_t bytes, int socket = -1);

 private:
  std::string rate_;
  std::string pause_;
  pid_t parent_ = getppid();
  Pace pace_;
};

}  // namespace ppmr
