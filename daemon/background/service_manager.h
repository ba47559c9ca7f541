// Reports to the service manager (systemd, Type=notify) that the daemon is ready, ends, or is
// alive.
// The protocol is one datagram per message, see sd_notify(3). The daemon does not link libsystemd,
// which would bring three compression libraries into a process that holds the memory of other
// processes.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace ppmr {

// The service manager of this process, which the environment names. The constructor removes the
// variables from the environment, so that a process that the daemon starts cannot send messages in
// the daemon's place. Without a service manager the members have no effect. Threads: created by one
// thread before other threads start; then any.
class ServiceManager {
 public:
  ServiceManager();

  // Sends `message`: "READY=1", "STOPPING=1" or another message of sd_notify(3). Never blocks.
  void notify(const std::string& message) const;
  // Returns WatchdogSec of the unit. 0: no watchdog.
  std::chrono::microseconds watchdog_period() const { return watchdog_period_; }

 private:
  // The constructor connects it, because the daemon loses the right to connect later. Empty: no
  // service manager.
  UniqueFd socket_;
  std::chrono::microseconds watchdog_period_{0};
};

// Calls `check` twice per watchdog period, and sends a message to the service manager after each
// call. The service manager kills a daemon whose `check` does not return.
class Watchdog {
 public:
  // Throws std::system_error when no thread can be started.
  Watchdog(const ServiceManager& manager, std::function<void()> check);
  ~Watchdog();

 private:
  void watch(std::chrono::microseconds interval);

  const ServiceManager& manager_;
  const std::function<void()> check_;
  Mutex mutex_;
  CondVar ending_;
  bool end_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
