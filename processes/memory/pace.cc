#include "processes/memory/pace.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

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

Status write_number(const std::string& path, uint64_t number) {
  const std::string written = path + ".new";
  std::ofstream file(written);
  file << number << '\n';
  file.close();
  if (!file) return system_failure("write", written);
  if (std::rename(written.c_str(), path.c_str()) != 0) return system_failure("write", path);
  return {};
}

uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : 0;
}

}  // namespace ppmr
