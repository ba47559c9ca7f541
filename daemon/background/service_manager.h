// Tells the service manager (systemd, Type=notify) that the daemon is ready, ends, or is alive.
//
// The protocol is one datagram per message, sd_notify(3). libsystemd is not linked: it would bring
// three compression libraries into a process that holds the memory of others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace ppmr {

// The service manager of this process, taken from the environment. The variables are removed from
// it: no process that the daemon starts may speak for the daemon. Without a service manager
// everything here does nothing. Threads: created by one, before others start; then any.
class ServiceManager {
 public:
  ServiceManager();

  // `message`: "READY=1", "STOPPING=1" and others of sd_notify(3). Never blocks.
  void notify(const std::string& message) const;
  // WatchdogSec of the unit; 0: no watchdog.
  std::chrono::microseconds watchdog_period() const { return watchdog_period_; }

 private:
  UniqueFd socket_;  // connected while the process may still do so; empty: no service manager
  std::chrono::microseconds watchdog_period_{0};
};

// Calls `check` twice per watchdog period and tells the service manager each time that it returned.
// A daemon that hangs in `check` is killed by the service manager.
class Watchdog {
 public:
  // Throws std::system_error when no thread is available.
  Watchdog(const ServiceManager& manager, std::function<void()> check);
  ~Watchdog();

 private:
  void watch(std::chrono::microseconds interval);

  const ServiceManager& manager_;
  const std::function<void()> check_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;    // guarded by mutex_
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
