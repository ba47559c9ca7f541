// A child process with an owner. When the owner is destroyed, it kills the child and all of the
// child's descendants, and reaps the child.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "base/spawn.h"
#include "base/unique_fd.h"

namespace ppmr {

// Threads: one.
class ChildProcess {
 public:
  // Starts the child. Errors: those of spawn() and pidfd_open(2).
  static Result<ChildProcess> start(const SpawnOptions& options);

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept = default;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { end(); }

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable as soon as the child has ended
  // Reaps the child if it has ended.
  bool ended();
  bool succeeded() const { return wait_status_ && *wait_status_ == 0; }
  bool was_killed() const;  // whether a signal killed the child
  // Returns a clause for messages: "ended with exit code 1", "was killed by signal 9 (Killed)", "is
  // running".
  std::string how_it_ended() const;
  // Kills the child and all of its descendants, including orphans that init would adopt.
  void end();
  // Gives up the ownership: the child keeps running, and may outlive this process.
  void leave() { pidfd_.reset(); }

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> wait_status_;
};

}  // namespace ppmr
