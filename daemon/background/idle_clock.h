// Decides when a daemon that was started on demand is no longer needed, and ends it then.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

// The daemon must end after it was idle for the whole limit: it was not busy, and no command asked
// it to stay.
// Threads: any.
class IdleClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  IdleClock(std::chrono::milliseconds limit, Time now) : limit_(limit), needed_at_(now) {}

  // Restarts the idle time, for a command that is about to use the daemon. Returns false if the
  // daemon is already ending.
  bool stay(Time now);
  // Returns whether the daemon must end. After it has returned true, it always returns true.
  bool is_over(bool busy, Time now);

 private:
  const std::chrono::milliseconds limit_;
  mutable Mutex mutex_;
  Time needed_at_ PPMR_GUARDED_BY(mutex_);
  bool over_ PPMR_GUARDED_BY(mutex_) = false;
};

// Calls `busy` once per interval, and calls `end` one time, when the idle time has run out. Both
// run on a thread of this object. Threads: created and destroyed by one thread.
class IdleEnd {
 public:
  // Throws std::system_error when no thread can be started.
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
