// Restores a process from a directory of images, lazily or eagerly. The directory may be in a ppmr
// mount or anywhere else.
//
// clang-format off
//   lazily    ppmr serve-pages |----- ready ------ serves page faults, fills in the rest ----| ends
//             criu restore                |------| ends: the process runs
//   eagerly   criu restore     |------------------------------------| ends: the process runs
// clang-format on
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restart_loader/criu/criu_process.h"

namespace ppmr {

// A file in the work directory. The pager creates it when the whole memory file has arrived.
inline constexpr const char* kMemoryCompleteFile = "/memory-complete";
// A link in the work directory. The pager creates it if CRIU must not restore from the images of
// the checkpoint; the link leads to the images from which CRIU restores.
inline constexpr const char* kSharedImages = "/shared-images";

struct RestoreOptions {
  std::string criu;
  std::string images;  // absolute path
  // The memory file to which the images' page index refers (processes/memory), for a lazy restore.
  // Empty: the images include the memory.
  std::string memory;
  // The path of a bundle of the small images (mount), for a lazy restore; empty: none.
  std::string bundle;
  // Whether the process may run before the memory file has arrived.
  bool post_copy = false;
  // Options of the pager, for a lazy restore (PagerOptions).
  bool any_file_sizes = false;
  bool leaves_locks = false;
  bool leaves_process_locks = false;
  std::string work;  // absolute path of CRIU's work directory, for its logs; not in the mount
  bool lazily = true;
  // Options that are appended to the options of `criu restore`. For a lazy restore they must
  // include an --action-script that runs the guard (pages_guard.h) at post-restore.
  std::vector<std::string> criu_options;
  // If set, replaces `criu restore`. Starts a program that restores from its argument, a directory
  // of images (lazily if `lazily`), guards the pages, and writes the pid to `work`/pidfile and its
  // log to `work`/restore.log.
  std::function<Result<std::unique_ptr<CriuProcess>>(const std::string&)> start;
  std::string name = "criu restore";                    // name of the restoring program, for errors
  std::function<void(const std::string&)> show_line;    // called for each line of CRIU's log
  std::function<void(const std::string&)> show_notice;  // called for ignored signals
  // Whether SIGINT, SIGTERM or SIGHUP ends a restore before the process runs. False in a migration,
  // because only the migration's record may end its restore.
  bool stops_on_signal = true;
  // The program and the first words of the pager's command line (restart_loader/pager); empty: this
  // program's.
  std::vector<std::string> pager;
  // Called at least once a second before the process runs. The restore ends if this function
  // returns a reason, a clause for messages; "": no reason. Without a function, nothing is called.
  std::function<std::string()> why_cancelled;
};

// Threads: one. While a Restore exists, SIGINT, SIGTERM and SIGHUP are blocked in that thread.
class Restore {
 public:
  static Result<std::unique_ptr<Restore>> create(RestoreOptions options);
  ~Restore();

  // Returns when the process runs. The pid is -1 if ppmr cannot read the user's --pidfile. EINVAL:
  // the images lack memory, and nothing was started. After another error CRIU has ended: EINTR if a
  // signal stopped the restore, ECANCELED if `why_cancelled` did, EOWNERDEAD if CRIU was killed,
  // else ECHILD with CRIU's first error and the remedy. The pager has ended, too, unless a relay
  // had let CRIU continue (relay_marks.h). In that case the tree may run, and the pager continues
  // to serve it (await_pages_server() in pages_guard.h).
  Result<pid_t> run();
  // Blocks until every page is in place. Ignores signals, because the process needs its pages.
  // Errors: EFAULT: memory is lost, and the guard (pages_guard.h) kills the process.
  Status finish_pages();

 private:
  explicit Restore(RestoreOptions options) : options_(std::move(options)) {}
  Status check_memory() const;
  Status start_pager();
  // Returns the directory of images from which CRIU restores.
  std::string images() const;
  Result<std::unique_ptr<CriuProcess>> start_criu() const;
  Status start_restore();
  // Handles the output of `criu restore` and of the pager until `done()` returns true.
  // Errors: EINTR, ECANCELED, see run().
  Status serve_until(const std::function<bool()>& done);
  Error explain(const std::string& what, CriuProcess& process);
  Result<pid_t> read_pid() const;

  const RestoreOptions options_;
  std::string pid_file_;
  // Log file that CRIU writes itself; empty: CRIU logs to a pipe that ppmr reads.
  std::string users_log_;
  UniqueFd signals_;  // signalfd
  bool running_ = false;
  std::unique_ptr<CriuProcess> pager_;
  std::unique_ptr<CriuProcess> restore_;
};

}  // namespace ppmr
