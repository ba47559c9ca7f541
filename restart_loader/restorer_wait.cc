#include "restart_loader/restorer_wait.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace ppmr {
namespace {

constexpr int kLooks = 50;
constexpr std::chrono::milliseconds kBetweenLooks{2};

// proc(5): "202 ARGUMENTS... STACK-POINTER PROGRAM-COUNTER", or "running".
uint64_t program_counter(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/syscall");
  std::string line;
  std::getline(file, line);
  const size_t last = line.rfind(" 0x");
  if (last == std::string::npos) return 0;
  return std::strtoull(line.c_str() + last + 1, nullptr, 16);
}

}  // namespace

uint64_t await_in_restorer(pid_t pid) {
  uint64_t at = 0;
  for (int look = 0; look < kLooks && (at = program_counter(pid)) == 0; ++look) {
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return at;
}

RestoredTasks look_at_restored(const TreeRecord& tree) {
  size_t waiting = 0;
  size_t elsewhere = 0;
  for (size_t i = 0; i < tree.tasks.size(); ++i) {
    if (!is_alive(tree.tasks[i])) continue;
    // A process that waits at the very address in the restorer is in the restorer: CRIU unmaps it
    // before it lets the process go.
    const uint64_t known = i < tree.waiting_at.size() ? tree.waiting_at[i] : 0;
    if (known != 0 && program_counter(tree.tasks[i].pid) == known) {
      ++waiting;
    } else {
      ++elsewhere;
    }
  }
  if (waiting + elsewhere == 0) return RestoredTasks::kGone;
  if (elsewhere == 0) return RestoredTasks::kWaiting;
  return waiting == 0 ? RestoredTasks::kRunning : RestoredTasks::kUndetermined;
}

}  // namespace ppmr
