// The signals with which an operator, a terminal or a service manager ends programs. They often
// reach a whole group of processes at once: `systemctl kill`, `pkill ppmr`, Ctrl-C. A process that
// others need until its protocol ends must survive them.
#pragma once

#include <csignal>

namespace ppmr {

inline constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

inline void ignore_ending_signals() {
  for (const int number : kEndingSignals) std::signal(number, SIG_IGN);
}

// Blocks the signals in the calling thread. A program that the thread executes starts with them
// blocked. This function, and not ignore_ending_signals(), protects CRIU: CRIU ends its helper
// cgroupd with SIGTERM and waits for its end. The helper unblocks the signal, but it would inherit
// an ignored signal and never end.
inline void block_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kEndingSignals) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace ppmr
