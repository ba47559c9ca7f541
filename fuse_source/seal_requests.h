// Checkpoints that the target asks this source to seal. A seal waits for the target, so the
// session's thread hands it to the thread here.
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
  // throw. Throws std::system_error without a thread.
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
