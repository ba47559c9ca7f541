// The processes above a tree: its parent, the parent's parent, and so on. They stay when the tree
// moves, and the nearest one gets SIGCHLD when the original is killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct Parent {
  pid_t pid = 0;
  pid_t parent = 0;                // 0: none that /proc shows
  std::string name;                // name of the process: "runsv"
  std::string program;             // name of its executable, without directories; empty: unknown
  std::vector<std::string> words;  // command line
  bool waits = false;              // blocked until a child ends
  bool has_terminal = false;       // has a controlling terminal
  size_t children = 0;             // living children, and zombies
};

// Returns the command line in the text of /proc/PID/cmdline.
std::vector<std::string> split_command_line(std::string_view text);
// Returns whether the text of /proc/PID/syscall shows a process that waits for its children.
bool is_waiting_for_children(std::string_view syscall_text);

// Returns the parents of the process, the nearest first, up to the first process that /proc shows.
// Leaves the rest out if one of them ends during the call.
std::vector<Parent> read_parents(pid_t pid);

}  // namespace ppmr
