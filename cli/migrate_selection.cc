// What `ppmr migrate` moves, and to which target: finds the source mount, the containers, the unit
// and the process trees, and refuses what another migration moves.
#include <fmt/format.h>

#include <algorithm>

#include "cli/migrate_steps.h"
#include "cli/move_ends.h"
#include "migration/settle/settle.h"
#include "migration/source/moved_unit.h"
#include "migration/source/rival.h"
#include "processes/proc_files.h"
#include "restart_loader/criu/passed_options.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultHoldLimit{120'000};

CommandResult<void> refuse_pids(const Error& error) {
  const bool is_gone = error.errno_value == ESRCH;
  return command_failure(ExitCode::kUsage,
                         fmt::format("--pid: {}{}", error.message,
                                     is_gone ? ": `ps -e` lists the processes of this node, `ppmr "
                                               "history` those that have moved"
                                             : ""));
}

}  // namespace

CommandResult<void> MigrateCommand::check_values() const {
  if (auto passed = check_passed_options(criu_options); !passed) {
    return command_failure(ExitCode::kUsage, passed.error().message);
  }
  if (Status safe = check_hooks(move.rehearse ? HookSettings{} : hooks); !safe) {
    return command_failure(ExitCode::kUsage, "--hook: " + safe.error().message);
  }
  const milliseconds hold_limit = timeout.value_or(kDefaultHoldLimit);
  if (hold_limit <= milliseconds(0) || hold_limit > kHoldLimitMax) {
    return command_failure(ExitCode::kUsage, "--timeout must be more than 0 and at most 24 h");
  }
  if (limits.max_downtime <= milliseconds(0)) {
    return command_failure(ExitCode::kUsage,
                           "--max-downtime must be more than 0: in every move the processes stand "
                           "still for a moment; --post-copy has the shortest downtime");
  }
  if (limits.max_time <= milliseconds(0)) {
    return command_failure(ExitCode::kUsage,
                           "--max-time must be more than 0; --stop-and-copy copies nothing while "
                           "the processes run");
  }
  if (limits.on_timeout == OnTimeout::kPostCopy && !id.empty()) {
    return command_failure(ExitCode::kUsage,
                           "--on-timeout post-copy excludes --id: a move that begins again has "
                           "another ID");
  }
  if (limits.on_timeout == OnTimeout::kPostCopy && move.rehearse) {
    return command_failure(ExitCode::kUsage,
                           "--on-timeout post-copy excludes --rehearse: rehearse the move without "
                           "--on-timeout, which has the same needs at both nodes");
  }
  return {};
}

CommandResult<void> Migrate::find_target() {
  auto ends = find_move_ends(
      {command_.mountpoint, command_.target_host, command_.key_file, command_.state_directory});
  if (!ends) return tl::unexpected(ends.error());
  settings_.mount = std::move(ends->mount);
  settings_.endpoint = std::move(ends->endpoint);
  auto criu = find_criu();
  if (!criu) return command_failure(ExitCode::kFailure, criu.error().message);
  settings_.criu = *criu;
  settings_.criu_options = command_.criu_options;
  settings_.hold_limit = command_.timeout.value_or(kDefaultHoldLimit);
  settings_.release_timeout = command_.release_timeout;
  settings_.live = command_.limits;
  if (!is_rehearsal()) settings_.hooks = command_.hooks;  // a rehearsal runs no hooks
  return {};
}

CommandResult<void> Migrate::find_containers() {
  if (command_.containers.empty()) return {};
  const auto refuse = [](const std::string& why) {
    return command_failure(ExitCode::kUsage, "--runc: " + why);
  };
  if (auto options = runc_options(command_.criu_options); !options) {
    return refuse(options.error().message);
  }
  for (const std::string& name : command_.containers) {
    auto facts = gather_container_facts(name);
    if (!facts) return refuse(facts.error().message);
    if (facts->state.pid <= 0) return refuse(name + " is " + facts->state.status);
    containers_.emplace(facts->state.pid, std::move(*facts));
  }
  return {};
}

CommandResult<void> Migrate::find_unit() {
  if (command_.unit.empty()) return {};
  if (command_.move.leave_running) {
    return command_failure(ExitCode::kUsage, fmt::format("--unit {}: a unit moves; it cannot be "
                                                         "copied (--leave-running)",
                                                         command_.unit));
  }
  auto unit = find_moved_unit(command_.unit);
  if (!unit) return command_failure(ExitCode::kUsage, "--unit " + unit.error().message);
  settings_.unit = std::move(unit->record);
  unit_main_ = unit->main_pid;
  std::vector<std::string>& options = settings_.criu_options;
  options.insert(options.end(), unit->criu_options.begin(), unit->criu_options.end());
  return {};
}

// Fails early if another migration moves the processes. Otherwise the checks would report that a
// debugger traces them. With --independent, only the trees stay that another migration moves.
CommandResult<void> Migrate::find_rivals(const RecordStore& store) {
  std::vector<ProcessIdentity> roots;
  for (const pid_t pid : wanted_pids()) {
    if (const auto root = identify(pid)) roots.push_back(*root);
  }
  Status alone = check_rivals(store, roots);
  if (!alone && alone.error().errno_value == EALREADY) {
    // The coordinator of the other migration may be dead. Settling it then frees the processes.
    settle_mount(store, MigrationRole::kSource, settings_.mount.mountpoint, kSettlePatience);
    alone = check_rivals(store, roots);
  }
  if (alone) return {};
  if (command_.independent && alone.error().errno_value == EALREADY) {
    for (const ProcessIdentity& root : roots) {
      const Status each = check_rivals(store, {root});
      if (!each) rivals_[root.pid] = each.error().message;
    }
    return {};
  }
  return command_failure(ExitCode::kMigrationAborted, alone.error().message);
}

CommandResult<void> Migrate::find_trees() {
  const MovePlan& plan = settings_.plan;
  MoveOptions& options = move_options_;
  options.lazily = plan.restores_lazily();
  options.post_copy = plan.may_run_before_memory();
  options.memory_apart = plan.moves_memory_apart();
  options.own_pid_namespace = plan.original_goes_on;
  options.moved_unit = settings_.unit.name;
  options.allowed_losses = {command_.allowed_losses.begin(), command_.allowed_losses.end()};
  options.read(settings_.criu_options);
  if (auto found = find_containers(); !found) return found;
  std::vector<pid_t> roots = wanted_pids();
  for (const auto& [root, container] : containers_) roots.push_back(root);
  if (command_.independent) return find_independent_trees(roots);
  auto selection = select_trees(roots, options.tree_options());
  if (!selection) return refuse_pids(selection.error());
  trees_ = std::move(selection->trees);
  findings_ = std::move(selection->findings);
  return {};
}

CommandResult<void> Migrate::find_independent_trees(const std::vector<pid_t>& roots) {
  std::vector<pid_t> alone = roots;
  std::erase_if(alone, [&](pid_t root) { return rivals_.contains(root); });
  for (const auto& [root, why] : rivals_) {
    const auto stat = read_process_stat(root);
    exclude(fmt::format("{} ({})", root, stat ? stat->name : "?"), {{Severity::kStops, why, ""}});
  }
  if (alone.empty()) return {};
  auto selection = select_independent_trees(alone, move_options_.tree_options());
  if (!selection) return refuse_pids(selection.error());
  trees_ = std::move(selection->trees);
  findings_ = std::move(selection->findings);
  for (ExcludedTree& tree : selection->excluded) exclude(tree.name, std::move(tree.findings));
  return {};
}

}  // namespace ppmr
