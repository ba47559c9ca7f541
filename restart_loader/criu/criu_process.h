// One running CRIU, or the relay or runc that runs a CRIU. Reads the log through a pipe, copies the
// log to a file, shows each line at once, and collects the errors.
//
// This class uses a pipe instead of CRIU's own log file (-o), to show each line as soon as CRIU
// writes it. A process that CRIU leaves behind, for example a child of an action script, may keep
// the pipe open. Therefore the reader stops when CRIU has ended and the pipe is empty, and does not
// wait for the end of the pipe.
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restart_loader/criu/child_process.h"
#include "restart_loader/criu/criu_log.h"
#include "restart_loader/criu/criu_options.h"

namespace ppmr {

// Returns the path of the CRIU to use: $PPMR_CRIU, else the one that third_party/install adds, else
// `criu` in PATH. Errors: ENOENT.
Result<std::string> find_criu();

struct CriuProcessOptions {
  std::vector<std::string> argv;
  std::string log_file;                          // gets a copy of the output; empty: no copy
  std::function<void(const std::string&)> show;  // gets each line of output; empty: not called
  bool status_fd = false;                        // add --status-fd 3: see ready()
  int request_socket = -1;                       // passed to `criu swrk 3`; -1: none
  std::vector<int> inherited;                    // become descriptors kFirstInheritedFd and so on
  bool background = false;  // stdin is /dev/null, and Ctrl-C does not signal CRIU
};

// Threads: one.
class CriuProcess {
 public:
  static Result<std::unique_ptr<CriuProcess>> start(CriuProcessOptions options);

  // Adds the descriptors to wait for. The caller calls process() after poll(2).
  void add_to(std::vector<pollfd>& fds) const;
  // Reads all that is in the pipes. Does not block.
  void process();
  // Blocks until CRIU has ended, but at most for `patience`. Returns whether CRIU has ended.
  bool await_end(std::chrono::milliseconds patience);

  bool ended() const { return ended_; }
  bool succeeded() const { return ended_ && child_.succeeded(); }
  bool ready() const { return ready_; }  // CRIU has written to the status fd
  bool was_killed() const { return ended_ && child_.was_killed(); }
  pid_t pid() const { return child_.pid(); }
  std::string how_it_ended() const { return child_.how_it_ended(); }
  CriuErrors& errors() { return errors_; }
  void end() { child_.end(), process(); }
  void leave() { child_.leave(); }
  // Continues CRIU after a SIGSTOP. With `background`, continues CRIU's whole process group.
  void resume() const {
    if (!ended_) kill(options_.background ? -child_.pid() : child_.pid(), SIGCONT);
  }

 private:
  CriuProcess() = default;
  void take_log(size_t bytes_max);
  void take_lines(bool all);

  CriuProcessOptions options_;
  UniqueFd log_pipe_;
  UniqueFd status_pipe_;
  UniqueFd copy_;
  std::string partial_;  // an incomplete line
  CriuErrors errors_;
  bool ready_ = false;
  bool ended_ = false;
  ChildProcess child_;  // last member, because the child must end first
};

// Replaces this process with CRIU. Returns only if that fails; the error says why.
Error execute_criu(const std::string& criu, const std::vector<std::string>& arguments);

// Returns why a dump has failed: how `process` has ended, and its first errors, which are in `log`.
Error explain_dump(CriuProcess& process, const std::string& what, const std::string& log);

}  // namespace ppmr
