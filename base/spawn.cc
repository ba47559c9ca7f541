#include "base/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>

#include <algorithm>

#include "base/unique_fd.h"

extern char** environ;

namespace ppmr {

Result<pid_t> spawn(const SpawnOptions& options) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Duplicates the descriptors to numbers above every number in `theirs`. Otherwise the dup2() for
  // one file could overwrite a descriptor that another file still needs.
  int above = 0;
  for (const SpawnFile& file : options.files) above = std::max(above, file.theirs + 1);
  std::vector<UniqueFd> copies;
  for (const SpawnFile& file : options.files) {
    copies.emplace_back(fcntl(file.ours, F_DUPFD_CLOEXEC, above));
    if (!copies.back()) {
      const int errno_value = errno;
      posix_spawn_file_actions_destroy(&actions);
      return system_failure("pass a file to", options.argv[0], errno_value);
    }
    posix_spawn_file_actions_adddup2(&actions, copies.back().get(), file.theirs);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  // Process group 0 means a new group.
  if (options.group == SpawnGroup::kOwn) flags |= POSIX_SPAWN_SETPGROUP;
  if (options.group == SpawnGroup::kOwnSession) flags |= POSIX_SPAWN_SETSID;
  posix_spawnattr_setflags(&attributes, flags);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGCHLD}) {
    sigaddset(&signals, number);
  }
  posix_spawnattr_setsigdefault(&attributes, &signals);

  std::vector<char*> argv;
  for (const std::string& argument : options.argv) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const std::string& program = options.program.empty() ? options.argv[0] : options.program;
  pid_t pid = -1;
  const int errno_value =
      posix_spawnp(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errno_value != 0) return system_failure("run", options.argv[0], errno_value);
  return pid;
}

}  // namespace ppmr
