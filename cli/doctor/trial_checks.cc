#include "cli/doctor/trial_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "base/ended_child.h"
#include "base/spawn.h"
#include "base/unique_fd.h"
#include "processes/proc_files.h"
#include "restart_loader/criu/run_command.h"
#include "restart_loader/criu/work_directory.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kCriuPatience{20'000};
constexpr milliseconds kStartPatience{5'000};
constexpr milliseconds kLookInterval{5};
constexpr const char* kProgram = "sleep";

void kill_and_reap(pid_t pid) {
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Waits until the child has become the program. Before that the child is env or setpriv, or still a
// copy of this program.
Status await_program(pid_t pid) {
  const auto deadline = Clock::now() + kStartPatience;
  while (Clock::now() < deadline) {
    const auto stat = read_process_stat(pid);
    if (stat && stat->name == kProgram) return {};
    if (has_ended(pid)) break;
    std::this_thread::sleep_for(kLookInterval);
  }
  return failure(ENOEXEC, fmt::format("`{}` cannot be started", kProgram));
}

Result<pid_t> start_program(uid_t user) {
  // The working directory of this process may be in a mount that CRIU cannot restore.
  std::vector<std::string> argv = {"env", "--chdir=/", kProgram, "60"};
  if (user != 0) {
    argv.insert(argv.begin(), {"setpriv", fmt::format("--reuid={}", user),
                               fmt::format("--regid={}", user), "--clear-groups"});
  }
  // The program must not inherit descriptors of this process. A descriptor of another mount
  // namespace, or a pipe of the operator's shell, would make the dump fail.
  if (close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    return system_failure("close_range", "the inherited descriptors");
  }
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return system_failure("open", "/dev/null");
  return spawn({.argv = std::move(argv),
                .files = {{null.get(), 0}, {null.get(), 1}, {null.get(), 2}},
                .group = SpawnGroup::kOwnSession});
}

// Returns the first line of CRIU's output that names an error.
std::string first_error(const CommandOutput& output) {
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("Error") != std::string::npos) return line;
  }
  return "criu " + output.ending;
}

Status run_criu(const std::string& step, const std::vector<std::string>& argv) {
  const auto done = run_command(argv, kCriuPatience);
  if (!done) return failure(done.error());
  if (done->succeeded) return {};
  return failure(ECHILD, fmt::format("`criu {}`: {}", step, first_error(*done)));
}

}  // namespace

Status try_criu(const std::string& criu, uid_t user) {
  const auto directory = WorkDirectory::create("");
  if (!directory) return failure(directory.error());
  const auto started = start_program(user);
  if (!started) return failure(started.error());
  const pid_t pid = *started;
  if (Status runs = await_program(pid); !runs) {
    kill_and_reap(pid);
    return runs;
  }
  const std::string& images = directory->path();
  const Status dumped = run_criu("dump", {criu, "dump", "--tree", std::to_string(pid),
                                          "--images-dir", images, "--manage-cgroups=ignore"});
  // A dump kills the program. The restore needs its pid, which is free only after the program has
  // been reaped.
  kill_and_reap(pid);
  if (!dumped) return dumped;
  Status restored = run_criu("restore", {criu, "restore", "--restore-detached", "--images-dir",
                                         images, "--manage-cgroups=ignore"});
  const auto stat = read_process_stat(pid);
  if (restored && (!stat || stat->name != kProgram)) {
    restored = failure(ECHILD, "`criu restore` succeeds, but the program does not run");
  }
  // The restored program was a child of CRIU, which has ended. The process that reaps orphans reaps
  // it.
  if (stat && stat->name == kProgram) kill(pid, SIGKILL);
  return restored;
}

Diagnosis judge_trial(uid_t user, const Status& tried, bool may_set_resources) {
  const bool is_root = user == 0;
  const std::string check = is_root ? "trial-root" : "trial-user";
  const std::string whose = is_root ? "root" : "an ordinary user (nobody)";
  if (tried) return ok(check, fmt::format("CRIU dumps and restores a program of {}", whose));
  const std::string message =
      fmt::format("CRIU cannot move a program of {}: {}", whose, tried.error().message);
  if (!is_root && !may_set_resources) {
    return problem(check, message,
                   "Give ppmr CAP_SYS_RESOURCE: without it, only processes of root move (many "
                   "containers lack it)");
  }
  if (tried.error().errno_value == ENOEXEC) {
    return warning(check, message, "Install coreutils and util-linux, and run ppmr doctor again");
  }
  return problem(check, message,
                 "Install CRIU 4.2 or later, and set PPMR_CRIU to its path; in a container, run "
                 "it with all capabilities");
}

}  // namespace ppmr
