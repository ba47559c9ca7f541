// Which trees `ppmr evacuate` moves off a node: by control group, by user, by command line.
#pragma once

#include <string>
#include <vector>

#include "restart_loader/processes/process_tree.h"

namespace ppmr {

// A process matches when all that are given do; at least one must be given.
struct ProcessSelector {
  std::string cgroup;   // "/batch/job7", or its path below /sys/fs/cgroup; with all groups below it
  std::string user;     // a name or a number: the real user
  std::string pattern;  // an extended regular expression (regex(7)) for the command line
};

struct SelectedTree {
  pid_t root = 0;
  std::string name;
  std::string command_line;
};

struct LeftOut {
  pid_t pid = 0;
  std::string name;
  std::string reason;  // "is a daemon of ppmr"
};

struct ProcessSelection {
  std::vector<SelectedTree> trees;  // topmost processes that match
  std::vector<LeftOut> left_out;    // what matches and is not moved, with the reason
};

// Never selected: process 1, threads of the kernel and the dead (not worth a word); ppmr itself,
// the calling process and those above it; a tree that one of these is in. Errors: EINVAL for a
// selector that is empty or not to be understood, ENOENT for a user or group that does not exist.
Result<ProcessSelection> select_processes(const ProcessSelector& selector);

// Whether one of the lines of /proc/PID/cgroup ("0::/batch/job7") is `cgroup` or below it.
bool is_in_cgroup(std::string_view lines, std::string_view cgroup);

}  // namespace ppmr
