#include "daemon/background/idle_clock.h"

namespace ppmr {

bool IdleClock::stay(Time now) {
  MutexLock lock(mutex_);
  if (!over_) needed_at_ = now;
  return !over_;
}

bool IdleClock::is_over(bool busy, Time now) {
  MutexLock lock(mutex_);
  if (busy && !over_) needed_at_ = now;
  over_ = over_ || now - needed_at_ >= limit_;
  return over_;
}

IdleEnd::IdleEnd(IdleClock& clock, std::chrono::milliseconds interval, std::function<bool()> busy,
                 std::function<void()> end)
    : clock_(clock),
      interval_(interval),
      busy_(std::move(busy)),
      end_(std::move(end)),
      thread_([this] { watch(); }) {}

IdleEnd::~IdleEnd() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void IdleEnd::watch() {
  while (!clock_.is_over(busy_(), std::chrono::steady_clock::now())) {
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, interval_, [this]() PPMR_REQUIRES(mutex_) { return stopped_; });
    if (stopped_) return;
  }
  end_();
}

}  // namespace ppmr
