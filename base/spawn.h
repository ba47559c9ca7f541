// Starts programs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct SpawnFile {
  int ours = -1;    // the descriptor in this process; may be close-on-exec
  int theirs = -1;  // the descriptor in the new process
};

enum class SpawnGroup {
  kCallers,     // Ctrl-C on the caller's terminal also reaches the new process
  kOwn,         // a process group of its own
  kOwnSession,  // a new POSIX session (setsid(2)), without a terminal
};

struct SpawnOptions {
  std::vector<std::string> argv;
  std::string program;  // a path, or a name to look for in PATH; empty: argv[0]
  std::vector<SpawnFile> files;
  SpawnGroup group = SpawnGroup::kCallers;
};

// Starts a program and returns its pid. The caller reaps the process. The process starts with no
// signal blocked and with the default signal actions. Errors: the errors of posix_spawn(3).
// Threads: any.
Result<pid_t> spawn(const SpawnOptions& options);

}  // namespace ppmr
