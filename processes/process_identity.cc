#include "processes/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/whole_file.h"
#include "processes/proc_files.h"

namespace ppmr {

Result<ProcessIdentity> identify(pid_t pid) {
  auto stat = read_process_stat(pid);
  if (!stat) return failure(stat.error());
  return stat->identity();
}

ProcessIdentity identify_self() {
  return identify(getpid()).value_or(ProcessIdentity{getpid(), 0});
}

namespace {

constexpr std::chrono::milliseconds kRetryInterval{10};

// Waits while the node is short of descriptors or memory. Without the text, callers would believe
// that each record is of an earlier boot or of another node, and that its processes are dead.
std::string read_when_possible(const std::string& path) {
  for (;;) {
    auto text = read_whole_file(path);
    if (text) return *text;
    const int error = text.error().errno_value;
    const bool is_short = error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN;
    if (!is_short) return "";
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace

std::string read_boot_id() {
  static const std::string boot_id = read_when_possible("/proc/sys/kernel/random/boot_id");
  return boot_id;
}

std::string read_node_id() {
  static const std::string node_id = [] {
    const std::string text = read_when_possible("/etc/machine-id");
    return text.substr(0, text.find('\n'));
  }();
  return node_id;
}

Result<bool> check_alive(const ProcessIdentity& process) {
  const auto stat = read_process_stat(process.pid);
  if (stat) return stat->identity() == process && !stat->is_dead();
  if (stat.error().errno_value == ESRCH) return false;
  return failure(stat.error());
}

bool is_alive(const ProcessIdentity& process) { return check_alive(process).value_or(true); }

bool is_ending(const ProcessIdentity& process) {
  const auto stat = read_process_stat(process.pid);
  if (!stat) return stat.error().errno_value == ESRCH;
  if (stat->identity() != process || stat->is_dead() || stat->is_exiting) return true;
  const auto status = read_process_status(process.pid);
  if (!status) return status.error().errno_value == ESRCH;
  return status->is_pending(SIGKILL);
}

Result<UniqueFd> open_pidfd(const ProcessIdentity& process) {
  const Error ended{ESRCH, fmt::format("process {} has ended", process.pid)};
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  // EINVAL and ENOENT mean that the kernel is just removing the process, or that a thread has its
  // pid (EINVAL; since Linux 6.14 ENOENT).
  const bool is_gone = errno == ESRCH || errno == EINVAL || errno == ENOENT;
  if (!pidfd && is_gone) return failure(ended);
  if (!pidfd) return system_failure("open a pidfd of process", std::to_string(process.pid));
  // Checked after the open. If the process is alive now, it had this pid during the open, so the
  // pidfd refers to this process.
  const auto alive = check_alive(process);
  if (!alive) return failure(alive.error());
  if (!*alive) return failure(ended);
  return pidfd;
}

Status check_identity(const ProcessIdentity& process, const std::string& boot_id) {
  if (boot_id != read_boot_id()) {
    return failure(ESRCH, fmt::format("process {} has ended: this node has been rebooted since the "
                                      "process was selected",
                                      process.pid));
  }
  const auto stat = read_process_stat(process.pid);
  if (!stat && stat.error().errno_value != ESRCH) return failure(stat.error());
  if (stat && stat->identity() != process) {
    return failure(ESRCH, fmt::format("process {} has ended since it was selected, and another "
                                      "process ({}) has its pid now",
                                      process.pid, stat->name));
  }
  if (!stat || stat->is_dead()) {
    return failure(ESRCH, fmt::format("process {} has ended since it was selected", process.pid));
  }
  return {};
}

Result<std::vector<ProcessIdentity>> tasks_of_tree(pid_t root) {
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  std::vector<ProcessIdentity> tasks;
  for (const ProcessStat& process : *tree) tasks.push_back(process.identity());
  return tasks;
}

}  // namespace ppmr
