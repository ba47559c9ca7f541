#include "restart_loader/criu/pages_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>

#include "base/descriptor_limit.h"
#include "base/ending_signals.h"
#include "base/own_path.h"
#include "base/unique_fd.h"
#include "processes/frozen_tasks.h"
#include "processes/proc_files.h"
#include "processes/process_identity.h"
#include "processes/restorer_wait.h"
#include "restart_loader/criu/shell_script.h"

namespace ppmr {
namespace {

constexpr const char* kServerFile = "/pages-server";
constexpr const char* kKilledFile = "/killed";
constexpr const char* kNeverRanFile = "/killed-before-it-ran";

// Reads the identity of the recorded pager; nullopt if no pager was recorded.
Result<std::optional<ProcessIdentity>> read_server(const std::string& work) {
  std::ifstream file(work + kServerFile);
  if (!file) return std::nullopt;
  ProcessIdentity server;
  if (!(file >> server.pid >> server.start_time)) {
    return failure(EIO, "read " + work + kServerFile + ": it names no process");
  }
  return server;
}

bool has_stopped_serving(const ProcessIdentity& process) {
  if (is_ending(process)) return true;
  const auto stat = read_process_stat(process.pid);
  if (!stat) return stat.error().errno_value == ESRCH;
  return stat->state == 't' || stat->state == 'T';  // T: stopped; t: the guard holds its exit
}

// Stops all tasks before it inspects and kills them. So no task can fork or leave CRIU's restorer
// in the meantime. Does not give up, because the tree would then read zeros.
void kill_tree(const std::string& work, const RestoredTree& tree) {
  const FrozenTasks stopped = insist_on_tasks(stop_trees, tree.tasks);
  if (look_at_restored(tree) == RestoredTasks::kWaiting) {
    std::ofstream(work + kNeverRanFile) << "all tasks waited for CRIU\n";
  }
  std::ofstream(work + kKilledFile) << "pages were missing\n";
  stopped.kill();
}

// Traces `server`: on success, its exit blocks until watch() handles it. Errors: those of
// ptrace(2); ESRCH if `server` has already ended.
Status seize(const ProcessIdentity& server) {
  if (ptrace(PTRACE_SEIZE, server.pid, nullptr, PTRACE_O_TRACEEXIT) != 0) {
    return system_failure("watch the pager, process", std::to_string(server.pid));
  }
  const auto alive = check_alive(server);
  if (!alive) return failure(alive.error());
  return *alive ? Status{} : failure(ESRCH, "the pager has ended before the process ran");
}

// Runs in the guard process. Returns when `server` has ended or can no longer be traced.
void watch(const std::string& work, pid_t server, const RestoredTree& tree) {
  for (;;) {
    int status = 0;
    if (waitpid(server, &status, __WALL) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    // The pager ended without a stop; never observed.
    if (!WIFSTOPPED(status)) return kill_tree(work, tree);
    const int number = WSTOPSIG(status);
    switch (status >> 16) {
      case PTRACE_EVENT_EXIT: {
        // The pager still has its descriptors open, so tasks that wait for a page keep waiting.
        unsigned long how = 1;
        ptrace(PTRACE_GETEVENTMSG, server, nullptr, &how);
        if (how != 0) kill_tree(work, tree);
        ptrace(PTRACE_DETACH, server, nullptr, nullptr);
        return;
      }
      case PTRACE_EVENT_STOP:  // SIGSTOP or SIGCONT
        ptrace(number == SIGTRAP ? PTRACE_CONT : PTRACE_LISTEN, server, nullptr, nullptr);
        break;
      default:  // another signal: pass it on to the pager
        ptrace(PTRACE_CONT, server, nullptr, reinterpret_cast<void*>(intptr_t{number}));
    }
  }
}

// Returns when the guard traces the pager.
Status start_guard(const std::string& work, const ProcessIdentity& server,
                   const RestoredTree& tree) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("make", "a pipe to the page guard");
  const UniqueFd answers(ends[0]);
  UniqueFd answer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return system_failure("start", "the page guard of lazily restored memory");
  if (child > 0) {
    answer.reset();
    int errno_value = 0;
    if (read(answers.get(), &errno_value, sizeof errno_value) != sizeof errno_value) {
      return failure(ECHILD, "the page guard of lazily restored memory died while it started");
    }
    if (errno_value == 0) return {};
    return failure(errno_value, "watch the pager: " + std::string(strerror(errno_value)));
  }
  setsid();
  const Status seized = seize(server);
  const int errno_value = seized ? 0 : seized.error().errno_value;
  const bool reported = write(answer.get(), &errno_value, sizeof errno_value) == sizeof errno_value;
  answer.reset();
  {
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
  }
  if (seized && reported) watch(work, server.pid, tree);
  _exit(0);
}

}  // namespace

bool has_pages_server(const std::string& work_directory) {
  return access((work_directory + kServerFile).c_str(), F_OK) == 0 || errno != ENOENT;
}

void await_pages_server(const std::string& work_directory) {
  const auto server = read_server(work_directory);
  if (!server || !*server) return;
  insist_on_tasks(FrozenTasks::open, {**server}).await_end();
}

void end_pages_server(const std::string& work_directory) {
  const auto server = read_server(work_directory);
  if (!server || !*server) return;
  const FrozenTasks pager = insist_on_tasks(FrozenTasks::open, {**server});
  pager.kill();
  pager.await_end();
}

bool guard_killed(const std::string& work_directory) {
  return access((work_directory + kKilledFile).c_str(), F_OK) == 0;
}

bool guard_killed_before_it_ran(const std::string& work_directory) {
  return access((work_directory + kNeverRanFile).c_str(), F_OK) == 0;
}

LostTree end_lost_tree(const std::string& work_directory,
                       const std::vector<ProcessIdentity>& tasks) {
  const bool in_time = guard_killed(work_directory);
  const FrozenTasks left = insist_on_tasks(stop_trees, tasks);
  left.kill();
  left.await_end();
  if (in_time) return LostTree::kKilled;
  return left.count() > 0 ? LostTree::kKilledLate : LostTree::kEnded;
}

std::string describe(LostTree lost) {
  constexpr const char* kCheck =
      "and it may have read zeros instead: check what it wrote since the move";
  switch (lost) {
    case LostTree::kKilled:
      return "was killed, because not all of its pages had arrived and it would have read zeros";
    case LostTree::kKilledLate:
      return fmt::format(
          "was killed too late: its page guard had ended, too, not all of its pages had arrived, "
          "{}",
          kCheck);
    case LostTree::kEnded:
      return fmt::format(
          "has ended without being killed: its page guard had ended, too, not all of its pages had "
          "arrived, {}",
          kCheck);
  }
  return "";
}

bool pages_server_is_lost(const std::string& work_directory) {
  auto server = read_server(work_directory);
  return !server || (*server && has_stopped_serving(**server));
}

void forget_pages_server(const std::string& work_directory) {
  unlink((work_directory + kNeverRanFile).c_str());
  unlink((work_directory + kKilledFile).c_str());
  unlink((work_directory + kServerFile).c_str());
}

Status note_pages_server(const std::string& work_directory, pid_t pid) {
  auto identity = identify(pid);
  if (!identity) return failure(identity.error());
  const std::string path = work_directory + kServerFile;
  std::ofstream file(path);
  file << identity->pid << ' ' << identity->start_time << '\n';
  file.flush();
  if (!file) return system_failure("write", path);
  return {};
}

Result<std::string> write_guard_script(const std::string& work_directory) {
  auto ppmr = own_path();
  if (!ppmr) return failure(ppmr.error());
  const std::string text = fmt::format(
      "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-restore ] || exit 0\n"
      "exec {} guard-pages --work {} --root \"$CRTOOLS_INIT_PID\"\n",
      shell_quoted(*ppmr), shell_quoted(work_directory));
  return write_script(work_directory + "/guard", text);
}

int PagesGuard::run() const {
  // A signal to a group of processes must not end the guard together with the pager.
  ignore_ending_signals();
  raise_descriptor_limit();  // the guard needs a descriptor for each task that it stops
  // The guard runs for a long time, so it must not keep CRIU's descriptors open.
  close_range(STDERR_FILENO + 1, ~0U, 0);
  // CRIU may start scripts with descriptors 0 to 2 closed. Opens /dev/null for them, so that no
  // other file gets these numbers.
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0 || fd > STDERR_FILENO) break;
  }
  const auto refuse = [](const Error& error) {
    std::fputs(fmt::format("Error (ppmr guard-pages): {}\n", error.message).c_str(), stderr);
    return 1;
  };
  auto server = read_server(work_directory);
  if (!server) return refuse(server.error());
  if (!*server) return 0;
  auto tasks = tasks_of_tree(restored_root);
  if (!tasks) return refuse(tasks.error());
  RestoredTree tree;
  for (const ProcessIdentity& task : *tasks) {
    tree.waiting_at.push_back(await_in_restorer(task.pid));
  }
  tree.tasks = std::move(*tasks);
  if (Status started = start_guard(work_directory, **server, tree); !started) {
    return refuse(started.error());
  }
  return 0;
}

}  // namespace ppmr
