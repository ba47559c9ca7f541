// The signals with which a user or a service manager ends a command that must not end at once.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/unique_fd.h"

namespace ppmr {

// Turns SIGINT, SIGTERM and SIGHUP into a flag. Create it before other threads, which inherit the
// blocked signals.
class Interruption {
 public:
  Interruption() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signals_ = UniqueFd(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  const std::atomic<bool>& flag() const { return flag_; }
  void poll_signals(std::chrono::milliseconds wait) {
    pollfd fd{signals_.get(), POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(wait.count())) <= 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof info) == sizeof info) flag_ = true;
  }

 private:
  sigset_t set_;
  UniqueFd signals_;
  std::atomic<bool> flag_{false};
};

}  // namespace ppmr
