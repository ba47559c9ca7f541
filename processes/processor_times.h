// How long the threads of a tree had a processor, and how long they waited for one although they
// were ready. Source: /proc/PID/task/TID/schedstat, which Documentation/scheduler/sched-stats.rst
// of the kernel describes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string_view>

namespace ppmr {

struct ProcessorTimes {
  std::chrono::nanoseconds ran{0};
  std::chrono::nanoseconds waited{0};
};

// Parses the content of a schedstat file. nullopt: malformed, or the kernel does not count.
std::optional<ProcessorTimes> parse_schedstat(std::string_view text);

// Returns the share of their time, 0 to 1, that ready threads waited for a processor; 0 if no
// thread was ready. Pure.
double waiting_share(const ProcessorTimes& times);

// Threads: one.
class ProcessorMeter {
 public:
  explicit ProcessorMeter(pid_t root) : root_(root) { (void)since_last(); }
  // Returns the times since the last call, summed over the threads of the tree. Counts a new thread
  // from its start. Does not count a thread that has ended.
  ProcessorTimes since_last();

 private:
  pid_t root_;
  std::map<pid_t, ProcessorTimes> threads_;  // at the last call
};

}  // namespace ppmr
