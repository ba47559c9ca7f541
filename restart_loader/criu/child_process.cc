#include "restart_loader/criu/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

extern char** environ;

namespace ppmr {
namespace {

// Parent of each process, as /proc shows it now.
std::vector<std::pair<pid_t, pid_t>> children_and_parents() {
  std::vector<std::pair<pid_t, pid_t>> pairs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::stringstream text;
    text << file.rdbuf();
    const std::string stat = text.str();
    const size_t after_name = stat.rfind(')');  // the name in front may hold anything
    if (after_name == std::string::npos) continue;
    std::istringstream fields(stat.substr(after_name + 1));
    char state = 0;
    pid_t parent = 0;
    if (fields >> state >> parent) pairs.emplace_back(static_cast<pid_t>(std::stol(name)), parent);
  }
  return pairs;
}

// Stops everything below `root`. Stopped processes neither fork nor exit, so nobody can slip away
// to init while the others are looked for.
std::set<pid_t> stop_descendants(pid_t root) {
  std::set<pid_t> stopped{root};
  kill(root, SIGSTOP);
  for (bool found = true; found;) {
    found = false;
    for (const auto& [child, parent] : children_and_parents()) {
      if (!stopped.contains(parent) || !stopped.insert(child).second) continue;
      kill(child, SIGSTOP);
      found = true;
    }
  }
  return stopped;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const ChildOptions& options) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const ChildFile& file : options.files) {
    posix_spawn_file_actions_adddup2(&actions, file.ours, file.theirs);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  if (options.own_group) flags |= POSIX_SPAWN_SETPGROUP;  // group 0: its own
  posix_spawnattr_setflags(&attributes, flags);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGCHLD}) {
    sigaddset(&signals, number);
  }
  posix_spawnattr_setsigdefault(&attributes, &signals);

  std::vector<char*> argv;
  for (const std::string& argument : options.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ChildProcess child;
  const int errno_value =
      posix_spawnp(&child.pid_, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errno_value != 0) {
    child.pid_ = -1;
    return system_failure("run", options.argv[0], errno_value);
  }
  // By number: glibc 2.36 declares pidfd_open() without extern "C".
  child.pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pidfd_) {
    const int why = errno;
    kill(child.pid_, SIGKILL);
    waitpid(child.pid_, nullptr, 0);
    child.pid_ = -1;
    return system_failure("watch", options.argv[0], why);
  }
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = other.pid_;
    pidfd_ = std::move(other.pidfd_);
    wait_status_ = other.wait_status_;
  }
  return *this;
}

bool ChildProcess::ended() {
  if (!pidfd_ || wait_status_) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) wait_status_ = status;
  return wait_status_.has_value();
}

bool ChildProcess::was_killed() const { return wait_status_ && WIFSIGNALED(*wait_status_); }

std::string ChildProcess::how_it_ended() const {
  if (!wait_status_) return "is running";
  if (WIFSIGNALED(*wait_status_)) {
    const int number = WTERMSIG(*wait_status_);
    return "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(*wait_status_));
}

void ChildProcess::end() {
  if (!pidfd_ || ended()) return;
  for (const pid_t pid : stop_descendants(pid_)) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  wait_status_ = status;
}

}  // namespace ppmr
