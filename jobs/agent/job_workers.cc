#include "jobs/agent/job_workers.h"

#include <utility>

namespace ppmr {

void JobWorkers::begin(const std::string& job, std::function<void()> work) {
  MutexLock lock(mutex_);
  for (auto one = workers_.begin(); one != workers_.end();) {
    if (!one->second.is_done) {
      ++one;
      continue;
    }
    one->second.thread.join();  // does not wait: a thread that is marked as done only returns
    one = workers_.erase(one);
  }
  if (workers_.contains(job)) return;
  Worker& worker = workers_[job];
  try {
    // The thread waits for this lock before it marks the worker as done. So `worker.thread` is set
    // by then.
    worker.thread = std::thread([this, job, work = std::move(work)] {
      work();
      MutexLock done(mutex_);
      workers_.at(job).is_done = true;
    });
  } catch (...) {
    workers_.erase(job);
    throw;
  }
}

void JobWorkers::await_all() {
  for (;;) {
    std::thread thread;
    std::string job;
    {
      MutexLock lock(mutex_);
      if (workers_.empty()) return;
      job = workers_.begin()->first;
      thread = std::move(workers_.begin()->second.thread);
    }
    thread.join();
    MutexLock lock(mutex_);
    workers_.erase(job);
  }
}

}  // namespace ppmr
