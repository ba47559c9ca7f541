#include "restart_loader/pages_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "buffer_pool/unique_fd.h"
#include "restart_loader/frozen_tasks.h"
#include "restart_loader/process_identity.h"
#include "restart_loader/restorer_wait.h"
#include "restart_loader/shell_script.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kServerFile = "/pages-server";
constexpr const char* kEndedFile = "/pages-ended";
constexpr const char* kNeverRanFile = "/killed-before-it-ran";
// lazy-pages has been sent all userfaultfds when CRIU calls us, but may not have received them.
constexpr milliseconds kTakePatience{3000};
constexpr milliseconds kBetweenLooks{1};

std::string ended_file(const std::string& work) { return work + kEndedFile; }

Result<UniqueFd> open_pidfd(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return system_failure("watch process", std::to_string(pid));
  return pidfd;
}

// Nothing if there is no lazy-pages.
Result<std::optional<ProcessIdentity>> read_server(const std::string& work) {
  std::ifstream file(work + kServerFile);
  if (!file) return std::nullopt;
  ProcessIdentity server;
  if (!(file >> server.pid >> server.start_time)) {
    return failure(EIO, "read " + work + kServerFile);
  }
  return server;
}

// Duplicates of all userfaultfds of a process.
Result<std::vector<UniqueFd>> take_userfaultfds(pid_t pid) {
  std::vector<UniqueFd> taken;
  auto pidfd = open_pidfd(pid);
  if (!pidfd) return failure(pidfd.error());
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    std::error_code gone;
    if (fs::read_symlink(entry, gone).string() != "anon_inode:[userfaultfd]") continue;
    const int number = std::atoi(entry.path().filename().c_str());
    UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd->get(), number, 0)));
    if (!fd && errno == EBADF) continue;  // closed just now
    if (!fd) return system_failure("share the userfaultfds of lazy-pages", std::to_string(pid));
    taken.push_back(std::move(fd));
  }
  if (error) return system_failure("list the descriptors of lazy-pages", std::to_string(pid));
  return taken;
}

// All that the server and what it runs has: one of each task that was restored.
Result<std::vector<UniqueFd>> await_userfaultfds(const ProcessIdentity& server, size_t count) {
  const auto deadline = Clock::now() + kTakePatience;
  for (;;) {
    auto processes = tasks_of_tree(server.pid);
    if (!processes || processes->front() != server) {
      return failure(ESRCH, "criu lazy-pages has ended before the process ran");
    }
    std::vector<UniqueFd> all;
    for (const ProcessIdentity& process : *processes) {
      auto some = take_userfaultfds(process.pid);
      if (!some) return failure(some.error());
      for (UniqueFd& fd : *some) all.push_back(std::move(fd));
    }
    if (all.size() >= count) return all;
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, fmt::format("criu lazy-pages serves {} of {} restored tasks",
                                            all.size(), count));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// Stopped first: then nobody forks while the others are looked for, and what waits in CRIU's
// restorer stays there.
void kill_tree(const std::string& work, const TreeRecord& tree) {
  const std::vector<ProcessIdentity>& roots = tree.tasks;
  std::vector<ProcessIdentity> found;
  for (size_t before = 1; before != found.size();) {
    before = found.size();
    found.clear();
    for (const ProcessIdentity& root : roots) {
      if (!is_alive(root)) continue;
      if (auto tasks = tasks_of_tree(root.pid)) {
        found.insert(found.end(), tasks->begin(), tasks->end());
      }
    }
    if (auto tasks = FrozenTasks::open(found)) tasks->stop();
  }
  if (look_at_restored(tree) == RestoredTasks::kWaiting) {
    std::ofstream(work + kNeverRanFile) << "all tasks waited for CRIU\n";
  }
  if (auto tasks = FrozenTasks::open(found)) tasks->kill();
}

bool ended_well(const std::string& work) {
  std::ifstream file(ended_file(work));
  int code = -1;
  return file >> code && code == 0;
}

// In the guard. `fds` are only held.
void guard(const std::string& work, const UniqueFd& server, const TreeRecord& tree) {
  setsid();
  {
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
  }
  pollfd fd{server.get(), POLLIN, 0};
  while (poll(&fd, 1, -1) < 0 && errno == EINTR) {
  }
  if (!ended_well(work)) kill_tree(work, tree);
}

}  // namespace

std::vector<std::string> with_exit_code_left(const std::vector<std::string>& argv,
                                             const std::string& work_directory) {
  std::vector<std::string> wrapped = {
      "/bin/sh", "-c",
      R"("$@"; code=$?; echo $code >"$0"; [ $code -le 128 ] || kill -$((code - 128)) $$; exit $code)",
      ended_file(work_directory)};
  wrapped.insert(wrapped.end(), argv.begin(), argv.end());
  return wrapped;
}

bool guard_killed_before_it_ran(const std::string& work_directory) {
  return access((work_directory + kNeverRanFile).c_str(), F_OK) == 0;
}

void forget_pages_server(const std::string& work_directory) {
  unlink((work_directory + kNeverRanFile).c_str());
  unlink((work_directory + kServerFile).c_str());
  unlink(ended_file(work_directory).c_str());
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

Result<std::string> guard_pages_line(const std::string& work_directory) {
  auto ppmr = own_path();
  if (!ppmr) return failure(ppmr.error());
  return fmt::format("{} guard-pages --work {} || exit 1", shell_quoted(*ppmr),
                     shell_quoted(work_directory));
}

Result<std::string> write_guard_script(const std::string& work_directory) {
  auto line = guard_pages_line(work_directory);
  if (!line) return failure(line.error());
  const std::string text =
      "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-restore ] || exit 0\n" + *line + "\n";
  return write_script(work_directory + "/guard", text);
}

int PagesGuard::run() const {
  // The guard stays for long: nothing that CRIU has left open may stay with it.
  close_range(STDERR_FILENO + 1, ~0U, 0);
  // CRIU may start its scripts without: what is opened next must not get one of these numbers.
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0 || fd > STDERR_FILENO) break;
  }
  const auto refuse = [](const Error& error) {
    fmt::print(stderr, "Error (ppmr guard-pages): {}\n", error.message);
    return 1;
  };
  auto server = read_server(work_directory);
  if (!server) return refuse(server.error());
  if (!*server) return 0;
  const char* root = std::getenv("CRTOOLS_INIT_PID");
  if (root == nullptr) return refuse({EINVAL, "CRIU did not tell the pid of what it restored"});
  auto tasks = tasks_of_tree(std::atoi(root));
  if (!tasks) return refuse(tasks.error());
  TreeRecord tree;
  size_t alive = 0;
  for (const ProcessIdentity& task : *tasks) {
    alive += is_alive(task) ? 1 : 0;
    tree.waiting_at.push_back(await_in_restorer(task.pid));
  }
  tree.tasks = *tasks;
  auto pidfd = open_pidfd((*server)->pid);
  if (!pidfd) return refuse(pidfd.error());
  auto held = await_userfaultfds(**server, alive);
  if (!held) return refuse(held.error());
  const pid_t child = fork();
  if (child < 0) return refuse({errno, "start the guard of lazily restored memory"});
  if (child > 0) return 0;
  guard(work_directory, *pidfd, tree);
  _exit(0);
}

}  // namespace ppmr
