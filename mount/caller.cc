#include "mount/caller.h"

#include <signal.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace ppmr {

namespace {

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

// These signals do not end a process by default (signal(7)).
constexpr uint64_t kHarmless = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGWINCH) |
                               bit(SIGSTOP) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);

}  // namespace

bool is_dying(std::istream& status) {
  uint64_t pending = 0;
  uint64_t survived = kHarmless;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Sig", 0) != 0 && line.rfind("Shd", 0) != 0) continue;
    // SigQ is a pair of counts, not a set of signals.
    if (line.find('/') != std::string::npos) continue;
    const std::string name = line.substr(0, 6);
    const uint64_t set = std::stoull(line.substr(7), nullptr, 16);
    if (name == "SigPnd" || name == "ShdPnd") pending |= set;
    if (name == "SigBlk" || name == "SigIgn" || name == "SigCgt") survived |= set;
  }
  return (pending & (~survived | bit(SIGKILL))) != 0;
}

bool caller_is_dying(pid_t caller) {
  std::ifstream status("/proc/" + std::to_string(caller) + "/status");
  return !status || is_dying(status);
}

}  // namespace ppmr
