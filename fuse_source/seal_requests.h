// Seals the checkpoints for which the target requests a seal. A seal waits for the target, and the
// thread of the session must not wait for the target. So a thread of this object runs the seals.
#pragma once

#include <functional>
#include <queue>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

// Threads: any.
class SealRequests {
 public:
  // Calls `serve` with the node at the top of each checkpoint, one after another. `serve` does not
  // throw. Throws std::system_error when the thread cannot be started.
  explicit SealRequests(std::function<void(uint64_t top_node)> serve);
  ~SealRequests();

  // Never blocks for long. Any values are allowed.
  void add(uint64_t top_node);

 private:
  void run();

  const std::function<void(uint64_t)> serve_;
  Mutex mutex_;
  CondVar changed_;
  std::queue<uint64_t> top_nodes_ PPMR_GUARDED_BY(mutex_);
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
