#include "migration/source/changed_limits.h"

#include <fmt/format.h>

#include "base/number_file.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Each file holds one number, which write_number() replaces atomically: the rate in bytes per
// second, shares in percent, times in milliseconds.
std::string downtime_file(const std::string& directory) { return directory + "/max-downtime"; }
std::string slow_down_file(const std::string& directory) { return directory + "/slow-down"; }
std::string time_file(const std::string& directory) { return directory + "/max-time"; }

Status write_time(const std::string& path, std::optional<milliseconds> time) {
  return time ? write_number(path, static_cast<uint64_t>(time->count())) : Status{};
}

void read_time(const std::string& path, milliseconds& time) {
  if (const uint64_t changed = read_number(path); changed > 0) {
    time = milliseconds(static_cast<int64_t>(changed));
  }
}

}  // namespace

Status check_max_rate(uint64_t rate_bytes_per_s) {
  if (rate_bytes_per_s == 0 || rate_bytes_per_s >= kMaxRateMinBytesPerS) return {};
  return failure(EINVAL,
                 fmt::format("the rate is too low: it must be at least {} MiB per second, or 0 "
                             "for no limit",
                             kMaxRateMinBytesPerS >> 20));
}

Status write_changed_limits(const std::string& directory, const ChangedLimits& changed) {
  Status written;
  if (changed.max_rate_bytes_per_s) {
    written = write_number(pace_files(directory).rate, *changed.max_rate_bytes_per_s);
  }
  if (written && changed.cpu_share_percent) {
    written = write_number(pace_files(directory).cpu_share, *changed.cpu_share_percent);
  }
  if (written && changed.slow_down_percent) {
    written = write_number(slow_down_file(directory), *changed.slow_down_percent);
  }
  if (written) written = write_time(downtime_file(directory), changed.max_downtime);
  if (written) written = write_time(time_file(directory), changed.max_time);
  return written;
}

void read_changed_limits(const std::string& directory, LiveLimits& limits) {
  read_time(downtime_file(directory), limits.max_downtime);
  read_time(time_file(directory), limits.max_time);
  limits.slow_down_percent = read_number(slow_down_file(directory));
}

PaceFiles pace_files(const std::string& directory) {
  return {.rate = directory + "/max-rate", .cpu_share = directory + "/cpu-share"};
}

}  // namespace ppmr
