// The life of a mount's process around its mount: going to the background like every FUSE file
// system, logging, and the signals that end it.
//
//   exit_code = run_daemon({.name = "ppmr source", .foreground = f}, [&](Daemon& daemon) {
//     ... if (!mount) return daemon.failed(mount.error(), ExitCode::kMountFailed);
//     StopSignals signals([&](int) { mount->stop(); });
//     daemon.ready();
//     ... serve until stopped ...
//     return ExitCode::kSuccess;
//   });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"
#include "mount/command_line/exit_code.h"

namespace spdlog::sinks {
class sink;
}  // namespace spdlog::sinks

namespace ppmr {

struct DaemonOptions {
  std::string name;         // begins each message for people
  bool foreground = false;  // stay in front: nothing is forked
  std::string log_file;     // empty: stderr in front, syslog in the background
};

// What the body of a daemon tells the process that waits for it. Threads: one at a time.
class Daemon {
 public:
  // The waiting parent exits with 0. In the background: leaves the terminal and the working
  // directory (resolve relative paths before), stdio becomes /dev/null, and the log goes to the log
  // file or to syslog. From here on the daemon does not die with its parent.
  void ready();
  // Before ready(): the parent prints the message and exits with `exit_code`. After it: the error
  // is logged. Returns `exit_code`.
  ExitCode failed(const Error& error, ExitCode exit_code);

 private:
  friend int run_daemon(const DaemonOptions&, const std::function<ExitCode(Daemon&)>&);
  explicit Daemon(DaemonOptions options) : options_(std::move(options)) {}
  Status start_log();
  void tell_parent(char verdict, ExitCode exit_code, const std::string& message);

  const DaemonOptions options_;
  std::shared_ptr<spdlog::sinks::sink> file_sink_;
  UniqueFd parent_;  // pipe to the waiting parent; empty in front and after the verdict
  bool ready_ = false;
};

// Runs `body` in the background or in front and returns the exit code of this process: in the
// parent once the child is ready, has failed or has died, in the child when `body` has ended. No
// thread may exist when it is called, because it forks. In `body` SIGTERM, SIGINT and SIGHUP are
// blocked (see StopSignals), SIGPIPE is ignored, and core dumps are off: images hold secrets.
int run_daemon(const DaemonOptions& options, const std::function<ExitCode(Daemon&)>& body);

// Calls a function when SIGTERM, SIGINT or SIGHUP arrives, on a thread of its own where everything
// is allowed. Create it early in the body: until then those signals wait.
// Threads: created and destroyed by one thread.
class StopSignals {
 public:
  using Stop = std::function<void(int signal)>;
  explicit StopSignals(Stop stop);
  ~StopSignals();

  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Blocks the three signals in the calling thread and in all it starts later.
  static void block();

 private:
  void watch();

  const Stop stop_;
  UniqueFd signals_;    // signalfd
  UniqueFd end_;        // eventfd: written by the destructor
  std::thread thread_;  // last: uses all of the above
};

}  // namespace ppmr
