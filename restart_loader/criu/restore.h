// Restores a process from a directory of images, lazily or eagerly. The directory may be in a mount
// of ours or anywhere else.
//
//   lazily    criu lazy-pages  ------ready------- serves page faults and fills in the rest ----
//   ends
//             criu restore                |------ ends: the process runs
//   eagerly   criu restore     |------------------------------------- ends: the process runs
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restart_loader/criu/criu_process.h"

namespace ppmr {

struct RestoreOptions {
  std::string criu;
  std::string images;  // absolute
  std::string work;    // absolute: CRIU's work directory, outside of the mount; gets the logs
  bool lazily = true;
  // For `criu restore`, after ours. Lazily, an --action-script among them has to run the guard
  // (pages_guard.h) at post-restore.
  std::vector<std::string> criu_options;
  // Instead of `criu restore`: starts what restores from `images`, lazily where that is wanted,
  // guards its pages like an action script, and writes the pid to `work`/pidfile and its log to
  // `work`/restore.log.
  std::function<Result<std::unique_ptr<CriuProcess>>()> start;
  std::string name = "criu restore";                    // of what restores, in errors
  std::function<void(const std::string&)> show_line;    // each line of CRIU's
  std::function<void(const std::string&)> show_notice;  // for people, about signals
  // Whether a signal ends what does not run yet. Not where a record decides what becomes of it.
  bool heeds_signals = true;
};

// Threads: one; while it lives, SIGINT, SIGTERM and SIGHUP are blocked in its thread.
class Restore {
 public:
  static Result<std::unique_ptr<Restore>> create(RestoreOptions options);
  ~Restore();

  // Returns once the process runs. The pid is -1 where CRIU did not tell it (the caller's options
  // have a --pidfile that cannot be read). Errors, with nothing left running: EINTR when a signal
  // came that is heeded, else ECHILD (EOWNERDEAD where CRIU was killed) with CRIU's first error and
  // what to do about it.
  Result<pid_t> run();
  // Waits until every page is in place. Signals are noted but not followed: the process needs its
  // pages. Errors: EFAULT: its memory is lost, and
  // its guard (pages_guard.h) kills it.
  Status finish_pages();

 private:
  explicit Restore(RestoreOptions options) : options_(std::move(options)) {}
  Status start_lazy_pages();
  Result<std::unique_ptr<CriuProcess>> start_criu() const;
  Status start_restore();
  // Serves both CRIUs until `done()`. EINTR when a signal came, unless the process runs.
  Status serve_until(const std::function<bool()>& done);
  Error explain(const std::string& what, CriuProcess& process);
  Result<pid_t> read_pid() const;

  const RestoreOptions options_;
  std::string pid_file_;
  std::string users_log_;  // of the caller; empty: the log comes through our pipe
  UniqueFd signals_;       // signalfd
  bool running_ = false;
  std::unique_ptr<CriuProcess> lazy_pages_;
  std::unique_ptr<CriuProcess> restore_;
};

}  // namespace ppmr
