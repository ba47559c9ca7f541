// The limits of a live move that an operator changes from another terminal while memory is copied:
// `ppmr migrate --set ID LIMITS`. They are in files beside the record. The coordinator reads them
// after each round, and the page reader reads the rate and the share all the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "migration/source/live_rounds.h"
#include "processes/memory/pace.h"

namespace ppmr {

// The lowest rate. The page reader copies up to 1 MiB for each request of the daemon, and the
// daemon waits only a short time for the reply.
constexpr uint64_t kMaxRateMinBytesPerS = uint64_t{1} << 20;

struct ChangedLimits {
  std::optional<uint64_t> max_rate_bytes_per_s;  // 0: no limit
  std::optional<uint64_t> cpu_share_percent;     // 1 to 100; 100: all free time
  std::optional<uint64_t> slow_down_percent;     // 0: no slow-down
  std::optional<std::chrono::milliseconds> max_downtime;
  std::optional<std::chrono::milliseconds> max_time;
};

// Errors: EINVAL for a rate that is too low to reply to the daemon in time.
Status check_max_rate(uint64_t rate_bytes_per_s);

// `directory`: the record's. Errors: those of the file system; some limits may be changed then.
Status write_changed_limits(const std::string& directory, const ChangedLimits& changed);
// Copies the limits that an operator has changed to `limits`, and leaves the other limits as they
// are. Always sets the slow-down: without its file it is 0.
void read_changed_limits(const std::string& directory, LiveLimits& limits);
// Returns the files that the page reader reads: the rate, and the share of a processor.
PaceFiles pace_files(const std::string& directory);

}  // namespace ppmr
