#include "migration/source/delay_meter.h"

#include <chrono>
#include <system_error>

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kInterval{1000};
constexpr milliseconds kShortest{200};

}  // namespace

DelayMeter::DelayMeter(pid_t root) : meter_(root) {
  try {
    thread_ = std::thread([this] { measure(); });
  } catch (const std::system_error&) {
  }
}

void DelayMeter::measure() {
  for (bool is_over = false; !is_over;) {
    const auto began = Clock::now();
    {
      MutexLock lock(mutex_);
      is_over =
          ended_.wait_for(mutex_, kInterval, [this]() PPMR_REQUIRES(mutex_) { return is_over_; });
    }
    if (Clock::now() - began < kShortest) return;
    shares_.push_back(waiting_share(meter_.since_last()));
  }
}

std::vector<double> DelayMeter::finish() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
  return shares_;
}

}  // namespace ppmr
