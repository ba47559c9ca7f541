// Selects the trees that `ppmr evacuate` moves: by control group, user or command line.
#pragma once

#include <string>
#include <vector>

#include "processes/process_tree.h"

namespace ppmr {

// A process must match all criteria that are not empty; at least one is required.
struct ProcessSelector {
  std::string cgroup;   // "/batch/job7" or a path in /sys/fs/cgroup; includes groups below it
  std::string user;     // name or number of the real user
  std::string pattern;  // an extended regular expression (regex(7)) for the command line
};

struct SelectedTree {
  pid_t root = 0;
  std::string name;
  std::string command_line;
};

struct ExcludedProcess {
  pid_t pid = 0;
  std::string name;
  std::string reason;  // "is ppmr itself"
};

struct ProcessSelection {
  std::vector<SelectedTree> trees;        // the topmost processes that match
  std::vector<ExcludedProcess> excluded;  // processes that match, but must not be moved
};

// Selects processes. Never selects process 1, kernel threads, zombies, or a tree that contains a
// process of ppmr or the calling process. Errors: EINVAL for a selector that is empty or invalid,
// ENOENT for a user or control group that does not exist.
Result<ProcessSelection> select_processes(const ProcessSelector& selector);

// Returns whether a line of /proc/PID/cgroup ("0::/batch/job7") is `cgroup` or below it.
bool is_in_cgroup(std::string_view lines, std::string_view cgroup);

}  // namespace ppmr
