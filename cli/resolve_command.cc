// If the other node is alive after all, the processes may run twice. So the operator types the name
// of the lost node, and a fence command can prove that it is dead.
#include "cli/resolve_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/find_migration.h"
#include "cli/lost_node.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "migration/relay/audit_events.h"
#include "migration/relay/source_driver.h"
#include "migration/relay/target_driver.h"
#include "migration/settle/settle.h"

namespace ppmr {
namespace {

std::string risk_of(const OwnershipRecord& record, bool run_here) {
  if (record.role == MigrationRole::kTarget && run_here) {
    return "The copy here will run. If the other node is alive, or starts again with the "
           "processes, "
           "they run twice.";
  }
  if (record.role == MigrationRole::kTarget) {
    return "The copy here will be killed. If the other node has decided to move the processes, "
           "they "
           "are lost.";
  }
  if (record.state() == MigrationState::kCommitted) {
    return "The processes were handed over. If the other node never starts again, they are lost, "
           "and this is recorded.";
  }
  return "The migration ends here. If the other node has a copy, it stays there, stopped.";
}

Result<OwnershipRecord> resolve(const RecordStore& store, const OwnershipRecord& record,
                                bool run_here) {
  if (record.role == MigrationRole::kTarget) {
    auto step = take_target_step(store, record.id, target_event::SourceIsGone{run_here});
    if (!step) return failure(step.error());
    return std::move(step->record);
  }
  if (run_here && record.state() >= MigrationState::kCommitted) {
    return failure(EPERM,
                   "the decision is made, and the processes here were killed: they cannot "
                   "run here; --discard records that they are lost");
  }
  auto step = SourceDriver(store, record.id).take(source_event::TargetIsGone{});
  if (!step) return failure(step.error());
  return std::move(step->record);
}

}  // namespace

int ResolveCommand::run() const {
  ignore_sigpipe();
  const auto fail = [&](const Error& error, ExitCode code = ExitCode::kFailure) {
    return report("migrate", {code, error.message}, json);
  };
  const auto store = RecordStore::open(state_directory);
  if (!store) return fail(store.error());
  const auto record = find_migration(*store, digits, MigrationRole::kTarget);
  if (!record) return fail({0, record.error().message}, record.error().exit_code);
  const std::string& id = record->id;
  if (record->is_settled()) {
    return fail({EALREADY, fmt::format("migration {} is {}: there is nothing to resolve", id,
                                       to_string(record->state()))},
                ExitCode::kUsage);
  }
  print_to(stderr, "Migration {}, {} at the {}. {}\n", id, to_string(record->state()),
           to_string(record->role), risk_of(*record, run_here));
  if (Status sure = confirm_lost(node_name(record->peer)); !sure) return fail(sure.error());
  if (Status fenced = run_fence(fence); !fenced) return fail(fenced.error());
  const auto resolved = resolve(*store, *record, run_here);
  audit_migration(*record, resolved ? "resolved" : "refused",
                  {{"run_here", run_here},
                   {"fence", fence},
                   {"by_uid", getuid()},
                   {"reason", resolved ? "" : resolved.error().message}});
  if (!resolved) return fail(resolved.error());
  const Settled settled = resolved->role == MigrationRole::kTarget
                              ? settle_target(*store, *resolved)
                              : settle_source(*store, *resolved, std::chrono::milliseconds(1));
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"migration", id},
                           {"role", to_string(resolved->role)},
                           {"open", settled.open},
                           {"what", settled.what}}));
  } else {
    print_to(stdout, "{} at the {}: {}\n", id, to_string(resolved->role), settled.what);
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
