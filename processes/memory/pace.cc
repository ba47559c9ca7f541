#include "processes/memory/pace.h"

#include <poll.h>

#include <algorithm>

#include "base/number_file.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// How soon a changed rate is noticed.
constexpr std::chrono::milliseconds kLookInterval{200};

// Returns whether the other end of the socket was closed before `until`.
bool is_closed_before(Clock::time_point until, int socket) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  pollfd watched{socket, 0, 0};  // poll() ignores a negative descriptor
  return ::poll(&watched, 1, static_cast<int>(std::max<int64_t>(left, 0))) > 0;
}

}  // namespace

Pace::Time Pace::wait_until(uint64_t bytes, uint64_t rate_bytes_per_s, Time now) {
  free_at_ = std::max(free_at_, now);
  if (rate_bytes_per_s == 0) return now;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(rate_bytes_per_s);
  free_at_ += std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
  return free_at_;
}

bool PacedReading::wait_after(uint64_t bytes, int socket) {
  if (rate_.empty() && pause_.empty()) return true;
  const auto read_at = Clock::now();
  for (;;) {
    // A copy: the bytes count once, at the last rate.
    Pace tried = pace_;
    const uint64_t pause = pause_.empty() ? 0 : read_number(pause_);
    if (pause == kReadNoMore || (pause > 0 && getppid() != parent_)) return false;
    const uint64_t rate = rate_.empty() ? 0 : read_number(rate_);
    const auto until = pause > 0 ? Pace::Time::max() : tried.wait_until(bytes, rate, read_at);
    const auto soon = Clock::now() + kLookInterval;
    if (until > Clock::now() && is_closed_before(std::min(until, soon), socket)) return false;
    if (until > soon) continue;
    pace_ = tried;
    return true;
  }
}

}  // namespace ppmr
