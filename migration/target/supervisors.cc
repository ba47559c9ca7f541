#include "migration/target/supervisors.h"

#include <fcntl.h>

#include "base/spawn.h"

namespace ppmr {

Status start_supervisor(const RecordStore& store, const std::string& id, size_t tree) {
  auto work = store.make_work_directory(id, MigrationRole::kTarget, tree);
  if (!work) return failure(work.error());
  const std::string log_path = *work + "/supervisor.log";
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return system_failure("open", log_path);
  auto pid = spawn({.argv = {"ppmr", "migration-restore", "--state-dir", store.directory(), "--id",
                             id, "--tree", std::to_string(tree)},
                    .program = "/proc/self/exe",
                    .files = {{null.get(), STDIN_FILENO},
                              {log.get(), STDOUT_FILENO},
                              {log.get(), STDERR_FILENO}},
                    .group = SpawnGroup::kOwnSession});
  if (!pid) return failure(pid.error());
  return {};
}

Status ensure_supervisors(const RecordStore& store, const OwnershipRecord& record) {
  for (size_t i = 0; i < record.trees.size(); ++i) {
    const TreeRecord& tree = record.trees[i];
    if (tree.phase == TreePhase::kComplete || is_alive(tree.supervisor)) continue;
    if (auto started = start_supervisor(store, record.id, i); !started) return started;
  }
  return {};
}

}  // namespace ppmr
