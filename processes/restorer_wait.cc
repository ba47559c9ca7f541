#include "processes/restorer_wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace ppmr {
namespace {

constexpr int kAttempts = 50;
constexpr std::chrono::milliseconds kAttemptInterval{2};

struct SystemCall {
  bool waits = false;  // the process is in futex(2), where the restorer waits for CRIU
  uint64_t program_counter = 0;
};

// Reads /proc/PID/syscall, see proc(5): "202 ARGUMENTS... STACK-POINTER PROGRAM-COUNTER", "-1
// STACK-POINTER PROGRAM-COUNTER" for a process that waits for a page, or "running".
SystemCall read_system_call(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/syscall");
  std::vector<uint64_t> words;
  for (std::string word; file >> word;) words.push_back(std::strtoull(word.c_str(), nullptr, 0));
  if (words.size() < 3) return {};
  const bool is_futex = words[0] == SYS_futex && (words[2] & FUTEX_CMD_MASK) == FUTEX_WAIT;
  return {is_futex, words.back()};
}

enum class Place { kRestorer, kElsewhere, kEnded };

// A process repeats a system call that a signal interrupted. If a second signal stops it before it
// repeats the call, its program counter is at the instruction of the call instead of after it.
bool is_at(uint64_t program_counter, uint64_t after_system_call) {
  constexpr uint64_t kMaxInstructionBytes = 4;  // x86-64: 2
  return program_counter <= after_system_call &&
         after_system_call - program_counter <= kMaxInstructionBytes;
}

// CRIU unmaps the restorer before it releases a process. So a process whose program counter is
// still at `in_restorer` waits in the restorer. While a process handles a signal, /proc shows no
// program counter, so the function tries again.
Place find_place(const ProcessIdentity& task, uint64_t in_restorer, int& attempts_left) {
  for (;; --attempts_left) {
    const uint64_t at = read_system_call(task.pid).program_counter;
    if (is_ending(task)) return Place::kEnded;
    if (at != 0) return is_at(at, in_restorer) ? Place::kRestorer : Place::kElsewhere;
    if (attempts_left <= 0) return Place::kElsewhere;
    std::this_thread::sleep_for(kAttemptInterval);
  }
}

}  // namespace

uint64_t await_in_restorer(pid_t pid) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const SystemCall call = read_system_call(pid);
    if (call.waits) return call.program_counter;
    std::this_thread::sleep_for(kAttemptInterval);
  }
  return 0;
}

RestoredTasks look_at_restored(const RestoredTree& tree) {
  size_t waiting = 0;
  size_t elsewhere = 0;
  int attempts_left = kAttempts;  // shared by all tasks
  for (size_t i = 0; i < tree.tasks.size(); ++i) {
    const uint64_t in_restorer = i < tree.waiting_at.size() ? tree.waiting_at[i] : 0;
    const Place place = find_place(tree.tasks[i], in_restorer, attempts_left);
    if (place == Place::kRestorer) ++waiting;
    if (place == Place::kElsewhere) ++elsewhere;
  }
  if (waiting + elsewhere == 0) return RestoredTasks::kGone;
  if (elsewhere == 0) return RestoredTasks::kWaiting;
  return waiting == 0 ? RestoredTasks::kRunning : RestoredTasks::kUndetermined;
}

}  // namespace ppmr
