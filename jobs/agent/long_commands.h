// Programs that run for longer than a request may take: whoever asks for one asks again until it
// has ended.
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
  // Starts the program unless the one of this name runs, and waits for its end, at most `patience`.
  // Returns whether it has ended with exit code 0; then the name is free again. Errors: of starting
  // it; ECHILD with its output.
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
