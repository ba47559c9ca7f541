// Which processes are moved together: a process with all of its descendants is what CRIU dumps, a
// tree. Looks only; no process is stopped or otherwise touched, so trees may still grow and shrink
// until CRIU freezes them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "restart_loader/processes/finding.h"
#include "restart_loader/processes/proc_files.h"

namespace ppmr {

// One process of a tree; its pid means it alone as long as its start time is the same.
struct TreeProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  uint64_t start_time_ticks = 0;
  std::string name;
};

struct ProcessTree {
  pid_t root = 0;
  std::vector<TreeProcess> processes;  // the root first, parents before their children

  bool contains(pid_t pid) const;
};

// All processes at one moment, by pid.
using ProcessTable = std::map<pid_t, ProcessStat>;

Result<ProcessTable> read_process_table();
// "412 (worker)".
std::string name_process(const ProcessTable& table, pid_t pid);
// Parent, its parent, ... up to the first process; `pid` itself is not in it.
std::vector<pid_t> ancestors_of(const ProcessTable& table, pid_t pid);

// The trees below `pids`, in that order; a pid below another one of them belongs to that one's
// tree. Errors: ESRCH for a pid that is not there or dead, EINVAL for one that no tool can move
// (process 1, a kernel thread) or that is ours or above us.
Result<std::vector<ProcessTree>> find_trees(const ProcessTable& table,
                                            const std::vector<pid_t>& pids);

struct TreeOptions {
  bool external_unix_sockets = false;  // CRIU is given --ext-unix-sk
};

struct TreeSelection {
  std::vector<ProcessTree> trees;
  std::vector<Finding> findings;  // what the trees share with processes that do not move with them
};

// The trees, and what ties them to other processes or to each other. Errors: those of find_trees();
// EACCES where we may not look; ESRCH when the root of a tree ended meanwhile.
Result<TreeSelection> select_trees(const std::vector<pid_t>& pids, const TreeOptions& options);

// The same as one answer: EBUSY, with all sentences, when anything stops the move.
Result<std::vector<ProcessTree>> choose_trees(const std::vector<pid_t>& pids,
                                              const TreeOptions& options = {});

}  // namespace ppmr
