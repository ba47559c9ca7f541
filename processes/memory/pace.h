// Keeps the reading of memory below a rate.
//
// The rate stands in a file, in bytes per second, so that it can be changed while memory is read.
// No file, or 0, is no limit.
#pragma once

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

// Reads at the rate of a file. Threads: one.
class PacedReading {
 public:
  // `path`: of the file; empty: there is no limit.
  explicit PacedReading(std::string path) : path_(std::move(path)) {}
  // Blocks after `bytes` were read, and shorter if the rate is raised meanwhile.
  void wait_after(uint64_t bytes);

 private:
  std::string path_;
  Pace pace_;
};

}  // namespace ppmr
