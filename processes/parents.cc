#include "processes/parents.h"

#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kParentsMax = 64;

size_t count_children(pid_t pid) {
  size_t count = 0;
  for (const pid_t thread : read_threads(pid).value_or(std::vector<pid_t>())) {
    const auto children = read_process_file(pid, "task/" + std::to_string(thread) + "/children");
    if (!children) continue;
    std::istringstream words(*children);
    for (pid_t child = 0; words >> child;) ++count;
  }
  return count;
}

Result<Parent> read_parent(pid_t pid) {
  const auto stat = read_process_stat(pid);
  if (!stat) return failure(stat.error());
  Parent parent{.pid = pid,
                .parent = stat->parent,
                .name = stat->name,
                .has_terminal = stat->terminal != 0,
                .children = count_children(pid)};
  if (const auto executable = read_process_link(pid, "exe")) {
    constexpr std::string_view kDeleted = " (deleted)";
    parent.program = executable->substr(executable->rfind('/') + 1);
    if (parent.program.ends_with(kDeleted))
      parent.program.resize(parent.program.size() - kDeleted.size());
  }
  if (const auto words = read_process_file(pid, "cmdline"))
    parent.words = split_command_line(*words);
  if (const auto call = read_process_file(pid, "syscall"))
    parent.waits = is_waiting_for_children(*call);
  return parent;
}

}  // namespace

std::vector<std::string> split_command_line(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\0'), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

bool is_waiting_for_children(std::string_view syscall_text) {
  long number = -1;
  const auto [end, error] =
      std::from_chars(syscall_text.data(), syscall_text.data() + syscall_text.size(), number);
  if (error != std::errc()) return false;  // "running", or a kernel without this file
  // dash waits for background jobs in rt_sigsuspend().
  return number == SYS_wait4 || number == SYS_waitid || number == SYS_rt_sigsuspend;
}

std::vector<Parent> read_parents(pid_t pid) {
  std::vector<Parent> parents;
  const auto stat = read_process_stat(pid);
  pid_t next = stat ? stat->parent : 0;
  while (next > 0 && parents.size() < kParentsMax) {
    auto parent = read_parent(next);
    if (!parent) break;
    next = parent->parent;
    parents.push_back(std::move(*parent));
  }
  return parents;
}

}  // namespace ppmr
