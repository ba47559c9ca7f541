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

// Blocks the signals in the calling thread. A program that it executes starts with them blocked.
// CRIU is protected in this way, because CRIU ends one of its helpers (cgroupd) with SIGTERM and
// waits for its end: the helper unblocks the signal, but would ignore it like its parent.
inline void block_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kEndingSignals) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace ppmr
