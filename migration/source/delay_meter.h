// Measures what a live move costs the processes: for each second, the share of their time in which
// they were ready to run, but waited for a processor.
#pragma once

#include <sys/types.h>

#include <thread>
#include <vector>

#include "base/mutex.h"
#include "processes/processor_times.h"

namespace ppmr {

// Measures from its construction on, in a thread of its own. Threads: one.
class DelayMeter {
 public:
  // Measures nothing if no thread can be started.
  explicit DelayMeter(pid_t root);
  ~DelayMeter() { (void)finish(); }

  // Ends the measurement. Returns the share of each second, and of the rest if it is long enough to
  // count: 0 (nothing waited) to 1.
  std::vector<double> finish();

 private:
  void measure();

  ProcessorMeter meter_;
  Mutex mutex_;
  CondVar ended_;
  bool is_over_ PPMR_GUARDED_BY(mutex_) = false;
  std::vector<double> shares_;  // only the thread uses it until it has ended
  std::thread thread_;
};

}  // namespace ppmr
