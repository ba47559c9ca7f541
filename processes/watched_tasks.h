// Watches processes that are no children of this one, and tells which of them have crashed.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// Whether the status, as of waitpid(2), is that of a process which a fault of its own has ended:
// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, SIGABRT. Other signals may be how programs end
// their children. Pure.
bool is_crash(int status);

struct CrashedTask {
  pid_t pid = 0;
  int signal = 0;
};

// Threads: one.
class WatchedTasks {
 public:
  WatchedTasks() = default;
  // Those that have ended already are not watched.
  explicit WatchedTasks(const std::vector<ProcessIdentity>& tasks);

  bool empty() const { return tasks_.empty(); }
  // Returns the first one that has crashed. A process that its parent has reaped is found since
  // Linux 6.15 only.
  std::optional<CrashedTask> crashed() const;

 private:
  std::vector<std::pair<ProcessIdentity, UniqueFd>> tasks_;
};

}  // namespace ppmr
