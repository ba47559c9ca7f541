#include "restart_loader/processes/process_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "restart_loader/processes/relations.h"

namespace ppmr {
namespace {

// Children come and go while a tree is looked at; after so many looks what was seen last counts.
constexpr int kLooksMax = 5;

Status check_movable(const ProcessTable& table, pid_t pid) {
  const auto found = table.find(pid);
  if (found == table.end())
    return failure(ESRCH, fmt::format("there is no process {} (any more)", pid));
  const std::string name = name_process(table, pid);
  if (found->second.is_dead())
    return failure(ESRCH, fmt::format("process {} has ended; its parent has not reaped it", name));
  if (found->second.kernel_thread)
    return failure(EINVAL, fmt::format("process {} is a thread of the kernel", name));
  if (pid == 1) return failure(EINVAL, "process 1 is what this node (or container) lives on");
  const std::vector<pid_t> above = ancestors_of(table, getpid());
  if (pid == getpid() || std::find(above.begin(), above.end(), pid) != above.end()) {
    return failure(EINVAL, fmt::format("process {} cannot be moved by a command that runs below "
                                       "it: run ppmr from elsewhere",
                                       name));
  }
  return {};
}

ProcessTree tree_below(const ProcessTable& table, pid_t root) {
  ProcessTree tree{.root = root};
  std::multimap<pid_t, const ProcessStat*> children;
  for (const auto& [pid, stat] : table) children.emplace(stat.parent, &stat);
  const auto add = [&](const ProcessStat& stat) {
    tree.processes.push_back({stat.pid, stat.parent, stat.start_time_ticks, stat.name});
  };
  add(table.at(root));
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const auto [begin, end] = children.equal_range(tree.processes[i].pid);
    for (auto child = begin; child != end; ++child) {
      if (!child->second->is_dead()) add(*child->second);
    }
  }
  return tree;
}

bool same_processes(const std::vector<ProcessTree>& a, const std::vector<ProcessTree>& b) {
  const auto identities = [](const std::vector<ProcessTree>& trees) {
    std::set<std::pair<pid_t, uint64_t>> all;
    for (const ProcessTree& tree : trees) {
      for (const TreeProcess& process : tree.processes)
        all.emplace(process.pid, process.start_time_ticks);
    }
    return all;
  };
  return identities(a) == identities(b);
}

}  // namespace

bool ProcessTree::contains(pid_t pid) const {
  return std::any_of(processes.begin(), processes.end(),
                     [pid](const TreeProcess& process) { return process.pid == pid; });
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
    if (!covered && taken.insert(pid).second) trees.push_back(tree_below(table, pid));
  }
  return trees;
}

Result<TreeSelection> select_trees(const std::vector<pid_t>& pids, const TreeOptions& options) {
  auto table = read_process_table();
  if (!table) return failure(table.error());
  auto trees = find_trees(*table, pids);
  if (!trees) return failure(trees.error());
  const std::vector<ProcessTree> first_trees = *trees;
  for (int look = 1;; ++look) {
    const auto relations = find_relations(*table, *trees);
    if (!relations) return failure(relations.error());
    auto table_after = read_process_table();
    if (!table_after) return failure(table_after.error());
    auto trees_after = find_trees(*table_after, pids);
    if (!trees_after) return failure(trees_after.error());
    for (size_t i = 0; i < first_trees.size() && i < trees_after->size(); ++i) {
      const TreeProcess &then = first_trees[i].processes.front(),
                        &now = (*trees_after)[i].processes.front();
      if (then.pid == now.pid && then.start_time_ticks != now.start_time_ticks) {
        return failure(ESRCH, fmt::format("process {} ({}) ended while it was looked at; another "
                                          "one has its pid now",
                                          then.pid, then.name));
      }
    }
    if (look == kLooksMax || same_processes(*trees, *trees_after)) {
      TreeSelection selection{.trees = std::move(*trees_after)};
      for (const Relation& relation : *relations)
        selection.findings.push_back(explain(*table, relation, options));
      return selection;
    }
    table = std::move(table_after);
    trees = std::move(trees_after);
  }
}

Result<std::vector<ProcessTree>> choose_trees(const std::vector<pid_t>& pids,
                                              const TreeOptions& options) {
  auto selection = select_trees(pids, options);
  if (!selection) return failure(selection.error());
  if (!stops(selection->findings)) return std::move(selection->trees);
  std::string message;
  for (const Finding& finding : selection->findings) {
    if (finding.severity != Severity::kStops) continue;
    if (!message.empty()) message += "; ";
    message += text_of(finding);
  }
  return failure(EBUSY, std::move(message));
}

}  // namespace ppmr
