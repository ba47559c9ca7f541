#include "restart_loader/processes/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "restart_loader/processes/proc_files.h"

namespace ppmr {
namespace {

std::string proc_path(pid_t pid, const std::string& file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

// Each thread has children of its own.
std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(proc_path(pid, "task"), error)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child; file >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace

Result<ProcessIdentity> identify(pid_t pid) {
  auto stat = read_process_stat(pid);
  if (!stat) return failure(stat.error());
  return ProcessIdentity{pid, stat->start_time_ticks};
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

bool is_alive(const ProcessIdentity& process) {
  auto stat = read_process_stat(process.pid);
  return stat && stat->start_time_ticks == process.start_time && !stat->is_dead();
}

bool is_ending(const ProcessIdentity& process) {
  if (!is_alive(process)) return true;
  auto stat = read_process_stat(process.pid);
  auto status = read_process_status(process.pid);
  return !stat || !status || stat->is_exiting || status->is_pending(SIGKILL);
}

Result<std::vector<ProcessIdentity>> tasks_of_tree(pid_t root) {
  auto first = identify(root);
  if (!first) return failure(first.error());
  std::vector<ProcessIdentity> tasks{*first};
  for (size_t next = 0; next < tasks.size(); ++next) {
    for (const pid_t child : children_of(tasks[next].pid)) {
      // A zombie has nothing left to hold or to kill, and no children.
      if (auto task = identify(child); task && is_alive(*task)) tasks.push_back(*task);
    }
  }
  return tasks;
}

}  // namespace ppmr
