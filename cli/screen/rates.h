// Rates of counters, and how a terminal shows them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "daemon/command_line/terminal_text.h"

namespace ppmr {

// The rate of a counter over the last second.
// Threads: one.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void add(uint64_t bytes, Time at);
  // Returns 0 until there are two samples. After a reset of the counter, begins anew.
  double bytes_per_s() const;
  // Returns the time between the two samples from which bytes_per_s() computes the rate.
  Time::duration measured_for() const;

 private:
  struct Sample {
    uint64_t bytes;
    Time at;
  };
  std::deque<Sample> samples_;  // the samples of the last second, and one older sample
};

// Returns a negative number if the time is unknown: nothing moves, or the total is unknown or
// exceeded.
double seconds_left(uint64_t bytes, uint64_t expected_bytes, double bytes_per_s);

// Returns, for example, "50%"; empty if the total is unknown or exceeded.
std::string percentage(uint64_t bytes, uint64_t expected_bytes);

// Returns a bar chart of the last `columns` values. The height of a bar is proportional to its
// value, and the largest value has the full height.
std::string sparkline(const std::deque<uint64_t>& values, size_t columns, Charset charset);

// Returns, for example, "[###.....]", with `columns` characters in all.
std::string gauge(uint64_t part, uint64_t whole, size_t columns);

}  // namespace ppmr
