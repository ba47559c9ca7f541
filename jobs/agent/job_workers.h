// Threads that work for jobs, one for each job. So work that takes long for one job does not delay
// another job.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

// Threads: one.
class JobWorkers {
 public:
  ~JobWorkers() { await_all(); }

  // Does `work` on a thread of its own, which outlives this call. Does nothing while earlier work
  // for the same job is under way. Throws std::system_error if no thread can start; then nothing
  // was done. `work` throws nothing.
  void begin(const std::string& job, std::function<void()> work);
  // Returns when no work is under way.
  void await_all();

 private:
  struct Worker {
    std::thread thread;
    bool is_done = false;
  };

  Mutex mutex_;
  std::map<std::string, Worker> workers_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
