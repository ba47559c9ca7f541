#include "restart_loader/migration/supervisors.h"

#include <fcntl.h>
#include <spawn.h>

extern char** environ;

namespace ppmr {

Status start_supervisor(const RecordStore& store, const std::string& id, size_t tree) {
  auto work = store.make_work_directory(id, MigrationRole::kTarget, tree);
  if (!work) return failure(work.error());
  const std::string log = *work + "/supervisor.log";
  const std::vector<std::string> arguments = {
      "ppmr",   "migration-restore", "--state-dir", store.directory(), "--id", id,
      "--tree", std::to_string(tree)};
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  const int errno_value =
      posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errno_value != 0) return system_failure("start", "ppmr migration-restore", errno_value);
  return {};
}

Status ensure_supervisors(const RecordStore& store, const OwnershipRecord& record) {
  for (size_t tree = 0; tree < record.trees.size(); ++tree) {
    const TreeRecord& kept = record.trees[tree];
    if (kept.phase == TreePhase::kComplete || is_alive(kept.supervisor)) continue;
    if (auto started = start_supervisor(store, record.id, tree); !started) return started;
  }
  return {};
}

}  // namespace ppmr
