#include "processes/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

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

std::string read_boot_id() {
  std::string boot_id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot_id, '\0');
  return boot_id;
}

std::string read_node_id() {
  std::string node_id;
  std::ifstream file("/etc/machine-id");
  std::getline(file, node_id);
  return node_id;
}

bool is_alive(const ProcessIdentity& process) {
  auto stat = read_process_stat(process.pid);
  return stat && stat->identity() == process && !stat->is_dead();
}

bool is_ending(const ProcessIdentity& process) {
  if (!is_alive(process)) return true;
  auto stat = read_process_stat(process.pid);
  auto status = read_process_status(process.pid);
  return !stat || !status || stat->is_exiting || status->is_pending(SIGKILL);
}

Status check_identity(const ProcessIdentity& process, const std::string& boot_id) {
  if (boot_id != read_boot_id()) {
    return failure(ESRCH, fmt::format("process {} has ended: this node has been rebooted since the "
                                      "process was selected",
                                      process.pid));
  }
  const auto stat = read_process_stat(process.pid);
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
