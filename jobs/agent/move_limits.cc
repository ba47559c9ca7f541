#include "jobs/agent/move_limits.h"

#include <fmt/format.h>

namespace ppmr {

std::vector<std::string> migrate_options(const MoveLimits& limits) {
  std::vector<std::string> words;
  const auto add = [&](const char* option, const auto& number, const char* unit) {
    if (number) words.insert(words.end(), {option, fmt::format("{}{}", *number, unit)});
  };
  const auto add_time = [&](const char* option, std::optional<std::chrono::milliseconds> time) {
    if (time) words.insert(words.end(), {option, fmt::format("{}ms", time->count())});
  };
  add_time("--max-downtime", limits.max_downtime);
  add_time("--max-time", limits.max_time);
  add("--max-rate", limits.max_rate_bytes_per_s, "");
  add("--cpu-share", limits.cpu_share_percent, "");
  add("--slow-down", limits.slow_down_percent, "");
  if (limits.cancels) words.insert(words.end(), {"--on-timeout", "cancel"});
  if (limits.stop_and_copy) words.emplace_back("--stop-and-copy");
  return words;
}

}  // namespace ppmr
