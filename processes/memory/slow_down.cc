#include "processes/memory/slow_down.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "processes/memory/stopped_process.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using std::chrono::microseconds;

// One stop and the run after it. A program that answers its clients quickly still answers within
// this time.
constexpr microseconds kPeriod{50'000};

}  // namespace

StopAndGo stop_and_go(uint64_t percent) {
  const auto share = static_cast<int64_t>(std::min(percent, kSlowDownMaxPercent));
  const microseconds stands = kPeriod * share / 100;
  return {stands, kPeriod - stands};
}

SlowDown::SlowDown(pid_t root, uint64_t percent, std::function<bool()> is_paused)
    : root_(root), times_(stop_and_go(percent)), is_paused_(std::move(is_paused)) {
  if (percent > 0) thread_ = std::thread([this] { stop_again_and_again(); });
}

SlowDown::~SlowDown() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool SlowDown::is_over_after(microseconds time) {
  MutexLock lock(mutex_);
  return ended_.wait_for(mutex_, time, [this]() PPMR_REQUIRES(mutex_) { return is_over_; });
}

void SlowDown::stop_again_and_again() {
  const auto patience = std::chrono::ceil<std::chrono::milliseconds>(times_.stands);
  const auto stand = [this]() -> Status {
    (void)is_over_after(times_.stands);
    return {};
  };
  do {
    if (is_paused_()) {
      (void)stand();
      continue;
    }
    std::vector<pid_t> pids;
    const auto tree = read_tree(root_);
    if (!tree) return;  // the tree has ended
    for (const ProcessStat& process : *tree) {
      if (!process.is_dead()) pids.push_back(process.pid);
    }
    (void)with_stopped_processes(pids, stand, patience);
  } while (!is_over_after(times_.runs));
}

}  // namespace ppmr
