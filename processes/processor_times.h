// How long the threads of a tree had a processor, and how long they waited for one although they
// were ready: /proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst of the kernel.
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

// Parses the content of such a file. nullopt: malformed, or the kernel does not count.
std::optional<ProcessorTimes> parse_schedstat(std::string_view text);

// The part of its time in which a ready thread waited; 0 if none was ready. Pure.
double waiting_share(const ProcessorTimes& times);

// Threads: one.
class ProcessorMeter {
 public:
  explicit ProcessorMeter(pid_t root) : root_(root) { (void)since_last(); }
  // Returns the sum over the threads of the tree since the last call. A thread that was made
  // meanwhile counts from its begin; one that has ended does not count.
  ProcessorTimes since_last();

 private:
  pid_t root_;
  std::map<pid_t, ProcessorTimes> threads_;  // when last seen
};

}  // namespace ppmr
