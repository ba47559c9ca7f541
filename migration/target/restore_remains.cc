#include "migration/target/restore_remains.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/relay/container_fate.h"
#include "migration/target/received_files.h"
#include "mount/mount_table.h"
#include "processes/files/tmpfs_builder.h"
#include "processes/frozen_tasks.h"
#include "processes/restorer_wait.h"
#include "restart_loader/criu/files_apart.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kRemovePatience{10};

void kill_all_children() {
  // Repeats the list, because a process may have forked while the others were listed. The children
  // of a killed process become children of this process. This process reaps them, because a zombie
  // keeps its pid.
  for (;;) {
    const auto all = tasks_of_tree(getpid());
    if (!all) return;
    for (size_t i = 1; i < all->size(); ++i) kill((*all)[i].pid, SIGKILL);
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
    while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
  }
}

// Removes the remains of a restore whose tasks have ended.
Status forget(const TreeRecord& tree, const std::string& work_directory) {
  kill_all_children();
  // The pager of an earlier supervisor is not a child of this process. When that pager ends, its
  // guard writes to the work directory, which the next restore uses, too.
  end_pages_server(work_directory);
  return forget_container_at_target(tree, work_directory);
}

}  // namespace

Result<bool> settle_remains(const TreeRecord& tree, const std::string& work_directory,
                            CriuEnd end) {
  auto criu = FrozenTasks::open({tree.criu});
  if (!criu) return failure(criu.error());
  if (criu->count() > 0) {
    // This process kills CRIU, because CRIU must not let tasks run while this process inspects
    // them. If the relay has already let CRIU continue, CRIU ends soon by itself.
    criu->stop();
    if (was_let_go(work_directory)) {
      criu->resume();
      end = CriuEnd::kByItself;
    } else {
      criu->kill();
    }
    criu->await_end();
  }
  const bool nothing_ran = !may_have_run(work_directory, end);
  switch (nothing_ran ? RestoredTasks::kWaiting : look_at_restored({tree.tasks, tree.waiting_at})) {
    case RestoredTasks::kWaiting: {
      auto tasks = FrozenTasks::open(tree.tasks);
      if (!tasks) return failure(tasks.error());
      tasks->kill();
      tasks->await_end();
      if (Status gone = forget(tree, work_directory); !gone) return failure(gone.error());
      return false;
    }
    case RestoredTasks::kRunning:
      return true;
    case RestoredTasks::kGone:
      if (!guard_killed_before_it_ran(work_directory)) return true;
      if (Status gone = forget(tree, work_directory); !gone) return failure(gone.error());
      return false;
    case RestoredTasks::kUndetermined:
      break;
  }
  return failure(
      EUCLEAN,
      fmt::format(
          "UNDETERMINED: CRIU died while it released the tree of process {}: some of its processes "
          "run, the others still wait for CRIU. ppmr leaves all of them as they are: inspect and "
          "kill them, then restore the tree from the checkpoint {} by hand",
          tree.root, tree.checkpoint));
}

Status remove_checkpoint(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!tree.protected_as.empty()) return {};  // the epoch is complete, and may be tried again
  auto mount = find_mount(record.mountpoint);
  if (!mount) return failure(mount.error());
  remove_parts(mount->mount.source, tree.checkpoint, record.peer);
  Status all;
  for (const std::string& name : {tree.checkpoint, memory_checkpoint(record.plan, tree)}) {
    if (name.empty()) continue;
    const auto removed =
        call(mount->mount.source, to_request(request::Remove{name, record.peer}), kRemovePatience);
    const Status done = removed ? accepted(*removed) : failure(removed.error());
    if (all) all = done;
  }
  return all;
}

void remove_built_files(const std::string& record_directory, size_t tree) {
  remove_built_tmpfs(record_directory + "/work-" + std::to_string(tree) + "/" + kFilledTmpfs);
}

}  // namespace ppmr
