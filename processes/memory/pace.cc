#include "processes/memory/pace.h"

#include <poll.h>

#include <algorithm>

#include "base/number_file.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// How soon the reading follows a changed limit.
constexpr std::chrono::milliseconds kLookInterval{200};

uint64_t number_in(const std::string& path) { return path.empty() ? 0 : read_number(path); }

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

nanoseconds rest_after(nanoseconds worked, nanoseconds elapsed, uint64_t percent) {
  if (percent == 0 || percent >= 100) return nanoseconds(0);
  return std::max(worked * 100 / static_cast<int64_t>(percent) - elapsed, nanoseconds(0));
}

bool PacedReading::wait_after(uint64_t bytes, nanoseconds others, int socket) {
  if (files_.rate.empty() && files_.cpu_share.empty() && files_.pause.empty()) return true;
  const bool goes_on = wait(bytes, others + processor_time() - used_before_, socket);
  used_before_ = processor_time();
  resumed_at_ = Clock::now();
  return goes_on;
}

bool PacedReading::wait(uint64_t bytes, nanoseconds worked, int socket) {
  const auto read_at = Clock::now();
  for (;;) {
    // A copy: the bytes count once, at the last rate.
    Pace tried = pace_;
    const uint64_t pause = number_in(files_.pause);
    if (pause == kReadNoMore || (pause > 0 && getppid() != parent_)) return false;
    const auto rested =
        read_at + rest_after(worked, read_at - resumed_at_, number_in(files_.cpu_share));
    const auto paced = tried.wait_until(bytes, number_in(files_.rate), read_at);
    const auto until = pause > 0 ? Pace::Time::max() : std::max(rested, paced);
    const auto soon = Clock::now() + kLookInterval;
    if (until > Clock::now() && is_closed_before(std::min(until, soon), socket)) return false;
    if (until > soon) continue;
    pace_ = tried;
    if (rested > paced) {
      rested_ += rested - paced;
      (void)write_number(files_.cpu_share + kRestedSuffix, static_cast<uint64_t>(rested_.count()));
    }
    return true;
  }
}

}  // namespace ppmr
