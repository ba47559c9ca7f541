// The limits of the moves of an evacuation. `ppmr migrate` checks and keeps them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ppmr {

// An absent limit has the default of `ppmr migrate`. The limits become a command line, and users
// and other hosts may send anything. So all limits are numbers or truth values.
struct MoveLimits {
  std::optional<std::chrono::milliseconds> max_downtime;
  std::optional<std::chrono::milliseconds> max_time;
  std::optional<uint64_t> max_rate_bytes_per_s;
  std::optional<uint64_t> cpu_share_percent;
  std::optional<uint64_t> slow_down_percent;
  bool cancels = false;  // --on-timeout cancel
  bool stop_and_copy = false;

  template <typename F>
  void fields(F&& field) {
    field.may_lack("max_downtime_ms", max_downtime), field.may_lack("max_time_ms", max_time);
    field.may_lack("max_rate_bytes_per_s", max_rate_bytes_per_s);
    field.may_lack("cpu_share_percent", cpu_share_percent);
    field.may_lack("slow_down_percent", slow_down_percent);
    field.may_lack("cancels", cancels), field.may_lack("stop_and_copy", stop_and_copy);
  }
};

// Returns the options for `ppmr migrate`. Pure.
std::vector<std::string> migrate_options(const MoveLimits& limits);

}  // namespace ppmr
