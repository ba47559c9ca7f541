// One running CRIU, or the relay or runc that runs one: its log comes through a pipe, is copied to
// a file, shown as it comes, and searched for errors.
//
// A pipe rather than CRIU's own log file (-o): its lines can be shown at the moment they are
// written. What CRIU leaves behind may hold that pipe (an action script's child, say); so its end
// is never waited for: when CRIU has ended, what is in the pipe is taken, and that is all.
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

namespace ppmr {

// The CRIU to use: $PPMR_CRIU, else the one that ppmr's installer puts beside the system's, else
// `criu` in PATH. Errors: ENOENT.
Result<std::string> find_criu();

struct CriuProcessOptions {
  std::vector<std::string> argv;
  std::string log_file;                          // the copy; empty: none
  std::function<void(const std::string&)> show;  // each line worth showing; may be empty
  bool status_fd = false;                        // with --status-fd 3: see ready()
  int request_socket = -1;                       // for `criu swrk 3`; -1: none
  bool background = false;  // no terminal: stdin is /dev/null, Ctrl-C is not for it
};

// Threads: one.
class CriuProcess {
 public:
  static Result<std::unique_ptr<CriuProcess>> start(CriuProcessOptions options);

  // What to poll for; process() afterwards.
  void add_to(std::vector<pollfd>& fds) const;
  // Takes what its pipes hold now. Never waits.
  void process();
  // Whether it ended within this time.
  bool await_end(std::chrono::milliseconds patience);

  bool ended() const { return ended_; }
  bool succeeded() const { return ended_ && child_.succeeded(); }
  bool ready() const { return ready_; }  // it wrote its byte to the status fd
  bool was_killed() const { return ended_ && child_.was_killed(); }
  pid_t pid() const { return child_.pid(); }
  std::string how_it_ended() const { return child_.how_it_ended(); }
  CriuErrors& errors() { return errors_; }
  void end() { child_.end(), process(); }
  // Should somebody have stopped it, or what it has started beside itself.
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
  std::string partial_;  // a line that has no end yet
  CriuErrors errors_;
  bool ready_ = false;
  bool ended_ = false;
  ChildProcess child_;  // last: ended first
};

}  // namespace ppmr
