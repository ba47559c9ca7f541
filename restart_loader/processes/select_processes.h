// Selects the trees that `ppmr evacuate` moves: by control group, user or command line.
#pragma once

#include <string>
#include <vector>

#include "restart_loader/processes/process_tree.h"

namespace ppmr {

// A process must match all criteria that are not empty; at least one is required.
struct ProcessSelector {
  std::string cgroup;   // "/batch/job7", or its path below /sys/fs/cgroup; includes its descendants
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
  std::vector<SelectedTree> trees;        // topmost processes that match
  std::vector<ExcludedProcess> excluded;  // processes that match and do not move
};

// Never selects process 1, kernel threads, zombies, ppmr itself, the calling process, its
// ancestors, and trees that contain one of these. Errors: EINVAL for a selector that is empty or
// invalid, ENOENT for a user or control group that does not exist.
Result<ProcessSelection> select_processes(const ProcessSelector& selector);

// Whether one of the lines of /proc/PID/cgroup ("0::/batch/job7") is `cgroup` or below it.
bool is_in_cgroup(std::string_view lines, std::string_view cgroup);

}  // namespace ppmr
