// A child process that is owned: killed with everything below it, and reaped, when its owner dies.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

struct ChildFile {
  int ours = -1;
  int theirs = -1;  // the number under which the child finds it
};

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is a path, or a name to look for in PATH
  std::vector<ChildFile> files;   // beside what it inherits
  bool own_group = false;         // Ctrl-C on the terminal is not for it
};

// Threads: one.
class ChildProcess {
 public:
  // The child begins with no signal blocked and default dispositions, whatever ours are. Errors:
  // those of posix_spawn(3).
  static Result<ChildProcess> start(const ChildOptions& options);

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept = default;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { end(); }

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once it has ended
  // Reaps the child if it has ended.
  bool ended();
  bool succeeded() const { return wait_status_ && *wait_status_ == 0; }
  bool was_killed() const;  // by a signal
  // For people: "ended with exit code 1", "was killed by signal 9 (Killed)", "is running".
  std::string how_it_ended() const;
  // Kills it and all of its descendants, also those it would leave behind as orphans.
  void end();

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> wait_status_;
};

}  // namespace ppmr
