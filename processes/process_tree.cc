#include "processes/process_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "processes/relations.h"

namespace ppmr {
namespace {

// Trees may change while ppmr reads them. So it reads them until two passes agree, at most this
// many times.
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
    return failure(EINVAL,
                   "process 1 cannot be moved: this node (or container) depends on it: name "
                   "the program itself, or a container with --runc");
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

// The trees at one moment, and the roots that have ended.
struct TreesOfRoots {
  std::vector<ProcessTree> trees;
  std::map<pid_t, Error> ended;  // key: the root
};

// Errors: EINVAL for a process that cannot move.
Result<TreesOfRoots> read_trees_of(const ProcessTable& table, const std::vector<pid_t>& roots) {
  TreesOfRoots found;
  for (const pid_t root : roots) {
    auto trees = find_trees(table, {root});
    if (trees) {
      found.trees.push_back(std::move(trees->front()));
    } else if (trees.error().errno_value == ESRCH) {
      found.ended.emplace(root, trees.error());
    } else {
      return failure(trees.error());
    }
  }
  return found;
}

// Returns `pids` without duplicates and without descendants of others.
std::vector<pid_t> topmost(const ProcessTable& table, const std::vector<pid_t>& pids) {
  const std::set<pid_t> selected(pids.begin(), pids.end());
  std::set<pid_t> done;
  std::vector<pid_t> roots;
  for (const pid_t pid : pids) {
    const std::vector<pid_t> above = ancestors_of(table, pid);
    const bool covered = std::any_of(above.begin(), above.end(),
                                     [&](pid_t ancestor) { return selected.contains(ancestor); });
    if (!covered && done.insert(pid).second) roots.push_back(pid);
  }
  return roots;
}

// Excludes each tree that must not move because of a relation. A relation that only warns becomes a
// finding.
IndependentTrees split(const ProcessTable& table, std::vector<ProcessTree> trees,
                       const std::vector<Relation>& relations, const TreeOptions& options) {
  IndependentTrees result;
  std::vector<ExcludedTree> excluded(trees.size());
  for (const Relation& relation : relations) {
    const Finding finding = explain(table, relation, options);
    if (finding.severity != Severity::kStops) {
      result.findings.push_back(finding);
      continue;
    }
    std::vector<pid_t> parted = relation.inside;
    // A receiver of datagrams can move without its senders.
    if (relation.kind != RelationKind::kUnixDatagram) {
      parted.insert(parted.end(), relation.in_other_trees.begin(), relation.in_other_trees.end());
    }
    for (size_t i = 0; i < trees.size(); ++i) {
      if (std::any_of(parted.begin(), parted.end(),
                      [&](pid_t pid) { return trees[i].contains(pid); })) {
        excluded[i].findings.push_back(finding);
      }
    }
  }
  for (size_t i = 0; i < trees.size(); ++i) {
    if (excluded[i].findings.empty()) {
      result.trees.push_back(std::move(trees[i]));
    } else {
      excluded[i].name = name_process(table, trees[i].root);
      result.excluded.push_back(std::move(excluded[i]));
    }
  }
  return result;
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
      for (const Relation& relation : *relations) {
        const bool to_journal =
            relation.kind == RelationKind::kUnixStream && relation.object == kJournalSocket;
        if (to_journal && options.journal_is_bridged) continue;
        selection.findings.push_back(explain(*table, relation, options));
      }
      return selection;
    }
    table = std::move(table_after);
    trees = std::move(trees_after);
  }
}

Result<IndependentTrees> select_independent_trees(const std::vector<pid_t>& pids,
                                                  const TreeOptions& options) {
  auto table = read_process_table();
  if (!table) return failure(table.error());
  const std::vector<pid_t> roots = topmost(*table, pids);
  auto found = read_trees_of(*table, roots);
  if (!found) return failure(found.error());
  for (int pass = 1;; ++pass) {
    const auto relations = find_relations(*table, found->trees);
    // ESRCH: a root has ended. The next pass has no tree for it.
    if (!relations && relations.error().errno_value != ESRCH) return failure(relations.error());
    auto table_after = read_process_table();
    if (!table_after) return failure(table_after.error());
    auto after = read_trees_of(*table_after, roots);
    if (!after) return failure(after.error());
    if (relations &&
        (pass >= kPassesMax || identities_of(found->trees) == identities_of(after->trees))) {
      IndependentTrees result = split(*table, std::move(after->trees), *relations, options);
      for (const auto& [root, error] : after->ended) {
        result.excluded.push_back(
            {name_process(*table, root), {{Severity::kStops, error.message, ""}}});
      }
      return result;
    }
    if (!relations && pass >= 2 * kPassesMax) return failure(relations.error());
    table = std::move(table_after);
    found = std::move(after);
  }
}

}  // namespace ppmr
