// Stops a tree for a share of the time, in many short stops, so that it writes less memory. QEMU's
// auto-converge does the same with the processors of a virtual machine.
//
// The stops use ptrace(2). If this process dies, the kernel lets the tree go on, and no limit
// stays.
//
// Rejected: cpu.max of the tree's control group. Other processes may be in the group, the tree may
// be in several groups, and after a crash no program would know the value to restore.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

inline constexpr uint64_t kSlowDownMaxPercent = 95;

// One stop and the time until the next one.
struct StopAndGo {
  std::chrono::microseconds stands{0};
  std::chrono::microseconds runs{0};
};

// Returns the stops for a share. `percent`: the share of the time in which the tree stands still,
// at most kSlowDownMaxPercent. Pure.
StopAndGo stop_and_go(uint64_t percent);

// Threads: one, which must not trace the tree's threads meanwhile (stopped_process.h).
class SlowDown {
 public:
  // Does not stop the tree if `percent` is 0, or while `is_paused` returns true. Calls `is_paused`
  // before each stop. No stop is longer than stop_and_go() says, even if a thread does not stop.
  SlowDown(pid_t root, uint64_t percent, std::function<bool()> is_paused);
  SlowDown(const SlowDown&) = delete;
  ~SlowDown();  // the tree runs as before

 private:
  void stop_again_and_again();
  bool is_over_after(std::chrono::microseconds time);

  const pid_t root_;
  const StopAndGo times_;
  const std::function<bool()> is_paused_;
  Mutex mutex_;
  CondVar ended_;
  bool is_over_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ppmr
