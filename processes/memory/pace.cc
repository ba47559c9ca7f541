#include "processes/memory/pace.h"

#include <algorithm>
#include <thread>

#include "base/number_file.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// How soon a changed rate is noticed.
constexpr std::chrono::milliseconds kLookInterval{200};

}  // namespace

Pace::Time Pace::wait_until(uint64_t bytes, uint64_t rate_bytes_per_s, Time now) {
  free_at_ = std::max(free_at_, now);
  if (rate_bytes_per_s == 0) return now;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(rate_bytes_per_s);
  free_at_ += std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
  return free_at_;
}

void PacedReading::wait_after(uint64_t bytes) {
  if (path_.empty()) return;
  const auto read_at = Clock::now();
  for (;;) {
    // A copy: the bytes count once, at the last rate.
    Pace tried = pace_;
    const auto until = tried.wait_until(bytes, read_number(path_), read_at);
    const auto soon = Clock::now() + kLookInterval;
    std::this_thread::sleep_until(std::min(until, soon));
    if (until > soon) continue;
    pace_ = tried;
    return;
  }
}

}  // namespace ppmr
