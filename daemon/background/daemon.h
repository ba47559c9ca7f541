// The process of a mount: it goes to the background like every FUSE file system, logs, and handles
// the signals that end it.
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

#include "base/exit_code.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/background/service_manager.h"
#include "daemon/command_line/command_error.h"

namespace spdlog::sinks {
class sink;
}  // namespace spdlog::sinks

namespace ppmr {

struct DaemonOptions {
  std::string name;         // error messages begin with this name
  bool foreground = false;  // do not fork
  std::string log_file;     // empty: stderr in the foreground, syslog in the background
};

// The body of a daemon uses this object to report to the waiting parent process that the daemon is
// ready or has failed. Threads: one at a time.
class Daemon {
 public:
  // Reports to the service manager that the daemon is ready, and makes the waiting parent exit with
  // 0. In the background the daemon then detaches: it starts its own session, its working directory
  // becomes / (resolve relative paths before), stdio becomes /dev/null, and the log goes to the log
  // file or to syslog. The daemon then no longer ends with its parent.
  void ready();
  // Before ready(), makes the parent print the message and exit with `exit_code`. After ready(),
  // logs the message. Returns `exit_code`.
  ExitCode failed(const Error& error, ExitCode exit_code);
  ExitCode failed(const CommandError& error) { return failed({0, error.message}, error.exit_code); }
  // Opens the log file again after logrotate has renamed it. Without a log file, does nothing.
  void reopen_log();
  const ServiceManager& service_manager() const { return service_manager_; }

 private:
  friend int run_daemon(const DaemonOptions&, const std::function<ExitCode(Daemon&)>&);
  explicit Daemon(DaemonOptions options) : options_(std::move(options)) {}
  Status start_log();
  Status open_log_file();
  void report_to_parent(char verdict, ExitCode exit_code, const std::string& message);

  const DaemonOptions options_;
  std::string log_path_;  // absolute
  const ServiceManager service_manager_;
  std::shared_ptr<spdlog::sinks::sink> file_sink_;
  UniqueFd parent_;  // pipe to the waiting parent; empty in the foreground and after the report
  bool ready_ = false;
};

// Runs `body` in the background or foreground and returns the exit code of this process. The parent
// returns when the child is ready, has failed or has died. The child returns when `body` has
// returned. An exception of `body` counts as Daemon::failed(). run_daemon() forks, so the process
// must not have other threads. While `body` runs, SIGTERM, SIGINT and SIGHUP are blocked (see
// StopSignals), SIGPIPE is ignored, and core dumps are disabled, because images hold secrets.
int run_daemon(const DaemonOptions& options, const std::function<ExitCode(Daemon&)>& body);

// Calls `stop` when SIGTERM or SIGINT arrives, and `reload` when SIGHUP arrives. Both run on a
// thread of this object, so they may call functions that are not async-signal-safe. Signals that
// arrive before this object exists stay pending. Threads: created and destroyed by one thread.
class StopSignals {
 public:
  using Stop = std::function<void(int signal)>;
  using Reload = std::function<void()>;
  // Throws std::system_error when it cannot get a descriptor or a thread.
  StopSignals(Stop stop, Reload reload);
  ~StopSignals();

  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Blocks SIGTERM, SIGINT and SIGHUP in the calling thread and in threads that it starts later.
  static void block();

 private:
  void watch();

  const Stop stop_;
  const Reload reload_;
  UniqueFd signals_;    // signalfd
  UniqueFd end_;        // eventfd: written by the destructor
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
