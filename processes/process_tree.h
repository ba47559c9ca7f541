// Finds the processes that move together. They form a tree: a process with all of its descendants,
// which is what CRIU dumps. These functions only read /proc; a tree may grow and shrink until CRIU
// freezes it.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "processes/finding.h"
#include "processes/proc_files.h"

namespace ppmr {

struct ProcessTree {
  pid_t root = 0;
  std::vector<ProcessStat> processes;  // the root first, parents before their children

  bool contains(pid_t pid) const;
};

// All processes at one moment, by pid.
using ProcessTable = std::map<pid_t, ProcessStat>;

Result<ProcessTable> read_process_table();
// Returns "412 (worker)".
std::string name_process(const ProcessTable& table, pid_t pid);
// Returns "412 (worker), 413 (worker) and 7 more".
std::string name_processes(const ProcessTable& table, const std::vector<pid_t>& pids);
// Returns the parent, the parent's parent, and so on up to the first process; without `pid` itself.
std::vector<pid_t> ancestors_of(const ProcessTable& table, pid_t pid);

// Returns the trees with the roots `pids`, in that order. A pid that is a descendant of another pid
// in `pids` gets no tree of its own. Errors: ESRCH for a pid that does not exist or is dead; EINVAL
// for a process that cannot move: process 1, a kernel thread, the calling process and its
// ancestors.
Result<std::vector<ProcessTree>> find_trees(const ProcessTable& table,
                                            const std::vector<pid_t>& pids);

struct TreeOptions {
  bool external_unix_sockets = false;  // CRIU gets --ext-unix-sk
  bool journal_is_bridged = false;     // the target connects journal sockets to its journal
};

struct TreeSelection {
  std::vector<ProcessTree> trees;
  // Objects that the trees share with other processes or with each other.
  std::vector<Finding> findings;
};

// Returns the trees, and the objects that they share with other processes or with each other.
// Errors: those of find_trees(); EACCES without permission to read /proc; ESRCH when the root of a
// tree has ended.
Result<TreeSelection> select_trees(const std::vector<pid_t>& pids, const TreeOptions& options);

// A tree that cannot move on its own, and why.
struct ExcludedTree {
  std::string name;  // "412 (worker)"
  std::vector<Finding> findings;
};

struct IndependentTrees {
  std::vector<ProcessTree> trees;  // trees that can move, each without the others
  std::vector<ExcludedTree> excluded;
  std::vector<Finding> findings;  // warnings about `trees`
};

// Selects each tree as select_trees() does for its pid alone, but reads /proc for all of them
// together. A tree that has ended, or that shares objects with any other process, is excluded; it
// does not stop the others. Errors: EINVAL as find_trees(); EACCES.
Result<IndependentTrees> select_independent_trees(const std::vector<pid_t>& pids,
                                                  const TreeOptions& options);

}  // namespace ppmr
