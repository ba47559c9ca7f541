// Reconnects a source that has lost its target, even while no checkpoint needs the connection. So
// the next checkpoint does not wait for a connection, and `ppmr status` shows whether the target is
// reachable.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"

namespace ppmr {

// Threads: created and destroyed by one thread.
class Reconnector {
 public:
  // Calls `connect` after each `interval`, on a thread of this object. `connect` must return at
  // once while there is a connection. Throws std::system_error when the thread cannot be started.
  Reconnector(std::chrono::milliseconds interval, std::function<Status()> connect);
  ~Reconnector();

  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

 private:
  void watch();

  const std::chrono::milliseconds interval_;
  const std::function<Status()> connect_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
