#include "processes/process_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "processes/relations.h"

namespace ppmr {
namespace {

// Trees may change while they are read, so they are read until two passes agree, at most this many
// times.
constexpr int kPassesMax = 5;

Status check_movable(const ProcessTable& table, pid_t pid) {
  const auto found = table.find(pid);
  if (found == table.end()) return failure(ESRCH, fmt::format("there is no process {}", pid));
  const std::string name = name_process(table, pid);
  if (found->second.is_dead())
    return failure(ESRCH, fmt::format("process {} has ended (it is a zombie)", name));
  if (found->second.kernel_thread)
    return failure(EINVAL, fmt::format("process {} is a kernel thread", name));
  if (pid == 1)
    return failure(EINVAL, "process 1 cannot be moved: this node (or container) depends on it");
  const std::vector<pid_t> above = ancestors_of(table, getpid());
  if (pid == getpid() || std::find(above.begin(), above.end(), pid) != above.end()) {
    return failure(
        EINVAL, fmt::format("process {} cannot be moved by this ppmr, its own descendant: run ppmr "
                            "from another shell",
                            name));
  }
  return {};
}

std::set<std::pair<pid_t, uint64_t>> identities_of(const std::vector<ProcessTree>& trees) {
  std::set<std::pair<pid_t, uint64_t>> identities;
  for (const ProcessTree& tree : trees) {
    for (const ProcessStat& process : tree.processes)
      identities.emplace(process.pid, process.start_time_ticks);
  }
  return identities;
}

// Errors: ESRCH when, in `now`, another process has the pid of a root.
Status check_same_roots(const std::vector<ProcessTree>& then, const std::vector<ProcessTree>& now) {
  for (size_t i = 0; i < std::min(then.size(), now.size()); ++i) {
    const ProcessStat& before = then[i].processes.front();
    const ProcessStat& after = now[i].processes.front();
    if (before.pid != after.pid || before.identity() == after.identity()) continue;
    return failure(ESRCH, fmt::format("process {} ({}) ended during the check, and another process "
                                      "has its pid now",
                                      before.pid, before.name));
  }
  return {};
}

}  // namespace

bool ProcessTree::contains(pid_t pid) const {
  return std::any_of(processes.begin(), processes.end(),
                     [pid](const ProcessStat& process) { return process.pid == pid; });
}

Result<ProcessTable> read_process_table() {
  auto processes = read_all_processes();
  if (!processes) return failure(processes.error());
  ProcessTable table;
  for (ProcessStat& stat : *processes) table.emplace(stat.pid, std::move(stat));
  return table;
}

std::string name_process(const ProcessTable& table, pid_t pid) {
  const auto found = table.find(pid);
  if (found == table.end()) return std::to_string(pid);
  return fmt::format("{} ({})", pid, found->second.name);
}

std::string name_processes(const ProcessTable& table, const std::vector<pid_t>& pids) {
  std::vector<std::string> names;
  for (const pid_t pid : pids) names.push_back(name_process(table, pid));
  return list_of(names);
}

std::vector<pid_t> ancestors_of(const ProcessTable& table, pid_t pid) {
  std::vector<pid_t> ancestors;
  for (auto found = table.find(pid); found != table.end() && ancestors.size() <= table.size();) {
    const pid_t parent = found->second.parent;
    found = table.find(parent);
    if (found != table.end()) ancestors.push_back(parent);
  }
  return ancestors;
}

Result<std::vector<ProcessTree>> find_trees(const ProcessTable& table,
                                            const std::vector<pid_t>& pids) {
  for (pid_t pid : pids) {
    if (Status movable = check_movable(table, pid); !movable) return failure(movable.error());
  }
  const std::set<pid_t> asked(pids.begin(), pids.end());
  std::set<pid_t> taken;
  std::vector<ProcessTree> trees;
  for (pid_t pid : pids) {
    const std::vector<pid_t> above = ancestors_of(table, pid);
    const bool covered = std::any_of(above.begin(), above.end(),
                                     [&](pid_t ancestor) { return asked.contains(ancestor); });
    if (covered || !taken.insert(pid).second) continue;
    auto processes = read_tree(pid);
    if (!processes) return failure(processes.error());
    trees.push_back({pid, std::move(*processes)});
  }
  return trees;
}

Result<TreeSelection> select_trees(const std::vector<pid_t>& pids, const TreeOptions& options) {
  auto table = read_process_table();
  if (!table) return failure(table.error());
  auto trees = find_trees(*table, pids);
  if (!trees) return failure(trees.error());
  for (int pass = 1;; ++pass) {
    const auto relations = find_relations(*table, *trees);
    if (!relations) return failure(relations.error());
    auto table_after = read_process_table();
    if (!table_after) return failure(table_after.error());
    auto trees_after = find_trees(*table_after, pids);
    if (!trees_after) return failure(trees_after.error());
    if (Status same = check_same_roots(*trees, *trees_after); !same) return failure(same.error());
    if (pass == kPassesMax || identities_of(*trees) == identities_of(*trees_after)) {
      TreeSelection selection{.trees = std::move(*trees_after)};
      for (const Relation& relation : *relations)
        selection.findings.push_back(explain(*table, relation, options));
      return selection;
    }
    table = std::move(table_after);
    trees = std::move(trees_after);
  }
}

}  // namespace ppmr
