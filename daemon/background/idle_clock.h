// When a daemon that was started on demand is no longer needed, and the thread that then ends it.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

// The daemon must end when, for the whole limit, it was not busy and no command asked it to stay.
// Threads: any.
class IdleClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  IdleClock(std::chrono::milliseconds limit, Time now) : limit_(limit), needed_at_(now) {}

  // Called by a command that is about to use the daemon: false if it is too late.
  bool stay(Time now);
  // Returns whether the daemon must end. Once true, always true.
  bool is_over(bool busy, Time now);

 private:
  const std::chrono::milliseconds limit_;
  mutable Mutex mutex_;
  Time needed_at_ PPMR_GUARDED_BY(mutex_);
  bool over_ PPMR_GUARDED_BY(mutex_) = false;
};

// Asks `busy` from time to time, and calls `end` once when the idle time has run out. Both run on a
// thread of this object. Threads: created and destroyed by one thread.
class IdleEnd {
 public:
  // Throws std::system_error without a thread.
  IdleEnd(IdleClock& clock, std::chrono::milliseconds interval, std::function<bool()> busy,
          std::function<void()> end);
  ~IdleEnd();

  IdleEnd(const IdleEnd&) = delete;
  IdleEnd& operator=(const IdleEnd&) = delete;

 private:
  void watch();

  IdleClock& clock_;
  const std::chrono::milliseconds interval_;
  const std::function<bool()> busy_;
  const std::function<void()> end_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
