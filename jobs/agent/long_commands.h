// Programs that run for longer than a request may take. The sender of the request repeats it until
// the program has ended.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "restart_loader/criu/child_process.h"

namespace ppmr {

// Threads: any.
class LongCommands {
 public:
  // Starts the program unless a program with this name runs already, and waits for its end for at
  // most `patience`. Returns true if it has ended with exit code 0, and false if it still runs.
  // When it has ended, the name is free again. Errors: those of the start; ECHILD with its output;
  // ECANCELED after cancel().
  Result<bool> await(const std::string& name, const std::vector<std::string>& argv,
                     std::chrono::milliseconds patience);
  bool runs(const std::string& name) const;
  // Kills the program. Idempotent.
  void cancel(const std::string& name);

 private:
  struct Running {
    ChildProcess process;
    UniqueFd output;  // a memfd
  };

  mutable Mutex mutex_;
  std::map<std::string, Running> running_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
