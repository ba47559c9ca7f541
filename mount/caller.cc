#include "mount/caller.h"

#include <signal.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace ppmr {

bool caller_is_dying(pid_t caller) {
  std::ifstream status("/proc/" + std::to_string(caller) + "/status");
  if (!status) return true;
  for (std::string line; std::getline(status, line);) {
    // Any signal that ends a process is turned into a pending SIGKILL of each of its threads
    // (complete_signal() in the kernel's signal.c).
    if (line.rfind("SigPnd:", 0) != 0 && line.rfind("ShdPnd:", 0) != 0) continue;
    const uint64_t pending = std::stoull(line.substr(7), nullptr, 16);
    if ((pending & (uint64_t{1} << (SIGKILL - 1))) != 0) return true;
  }
  return false;
}

bool request_is_futile(fuse_req_t request) {
  return fuse_req_interrupted(request) != 0 && caller_is_dying(fuse_req_ctx(request)->pid);
}

}  // namespace ppmr
