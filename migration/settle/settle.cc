#include "migration/settle/settle.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "daemon/command_line/output.h"
#include "daemon/control/control_client.h"
#include "daemon/control/endpoint_file.h"
#include "daemon/control/requests.h"
#include "migration/relay/connections_of_tree.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/source_driver.h"
#include "migration/relay/target_driver.h"
#include "migration/relay/unit_fate.h"
#include "migration/settle/abandoned_checkpoints.h"
#include "migration/target/restore_remains.h"
#include "migration/target/supervisors.h"
#include "mount/mount_table.h"
#include "processes/frozen_group.h"

namespace ppmr {
namespace {

using enum MigrationState;
using std::chrono::milliseconds;

constexpr milliseconds kDaemonsPatience{5000};

// Returns the endpoint of the daemon that serves the mount now. It may reach the target at another
// address, or with another key, than the daemon that served the mount when the migration began.
nlohmann::json present_endpoint(const OwnershipRecord& record) {
  const auto mount = find_mount(record.mountpoint);
  if (!mount || !mount->remainder.empty()) return record.endpoint;
  auto endpoint = read_endpoint(mount->mount.source);
  if (!endpoint || parse_endpoint(*endpoint).address.empty()) return record.endpoint;
  return std::move(*endpoint);
}

std::string outcome_of(const OwnershipRecord& record) {
  if (record.has_losses()) return record.losses();
  switch (record.state()) {
    case kAborted:
      return "aborted: the processes continue here";
    case kCommitted:
    case kFinished:
      return "committed: the processes run at the target, none remains here";
    default:
      return fmt::format("{}: no process here is alive, and the target has not decided",
                         to_string(record.state()));
  }
}

}  // namespace

Settled settle_source(const RecordStore& store, const OwnershipRecord& record,
                      milliseconds patience) {
  if (home_of(record) == Home::kOtherNode) return {true, false, "belongs to another node"};
  if (record.is_settled())
    return {false, false, fmt::format("{}; complete", to_string(record.state()))};
  SourceDriver driver(store, record.id);
  const bool here = home_of(record) == Home::kThisBoot;
  if (here && !is_over(record.state()) && driver.coordinator_works(record)) {
    return {true, false,
            fmt::format("in progress: {}; ppmr migrate (pid {}) runs it", to_string(record.state()),
                        record.coordinator.pid)};
  }
  AgentClient agent(parse_endpoint(present_endpoint(record)));
  const auto settled = driver.drive(agent, patience);
  if (!settled) return {true, false, settled.error().message};
  // If the relay was killed before it removed the moved container, runc still has it.
  for (const TreeRecord& tree : settled->trees) {
    const bool held = is_alive(tree.criu);
    if (!here || held || settled->state() == kAborted) continue;
    (void)settle_container_at_source(*settled, tree);
  }
  if (here && is_over(settled->state()) && settled->plan.may_run_before_memory()) {
    remove_frozen_groups(settled->id);
  }
  if (settled->is_settled()) {
    return {false, false, outcome_of(*settled) + "; the target has acknowledged it"};
  }
  return {true, driver.target_is_silent(),
          driver.obstacle().empty()
              ? outcome_of(*settled)
              : fmt::format("{}, but not complete: {}", outcome_of(*settled), driver.obstacle())};
}

Settled settle_target(const RecordStore& store, const OwnershipRecord& before) {
  if (home_of(before) == Home::kOtherNode) return {true, false, "belongs to another node"};
  const std::string failed = before.first_error();
  Result<OwnershipRecord> now = before;
  if (!is_over(before.state())) {
    const auto step =
        take_target_step(store, before.id, target_event::Look{}, {.tries_again = true});
    if (!step) return {true, false, step.error().message};
    for (const TargetAction action : step->actions) {
      if (action == TargetAction::kStartSupervisors) {
        if (Status kept = ensure_supervisors(store, step->record); !kept) {
          return {true, false, kept.error().message};
        }
      } else {
        for (size_t i = 0; i < step->record.trees.size(); ++i) {
          (void)remove_checkpoint(step->record, step->record.trees[i]);
          remove_built_files(store.path_of(before.id, MigrationRole::kTarget), i);
        }
      }
    }
    now = step->record;
  }
  const OwnershipRecord& record = *now;
  if (record.has_losses()) return {!is_over(record.state()), false, record.losses()};
  if (is_over(record.state())) {
    return {false, false,
            fmt::format("{}{}{}", to_string(record.state()), record.error.empty() ? "" : ": ",
                        record.error)};
  }
  if (record.state() == kRestoring) return {true, false, "the restore is in progress here"};
  if (record.state() == kReady) {
    return {true, false,
            fmt::format("in doubt: restored and stopped here; the source ({}) has the "
                        "decision, and its daemon will send it as soon as it runs",
                        record.peer)};
  }
  if (!failed.empty()) {
    return {true, false, "belongs to this node; the restore is tried again after: " + failed};
  }
  return {true, false, "belongs to this node; the restore is in progress"};
}

void settle_mount(const RecordStore& store, MigrationRole role, const std::string& mountpoint,
                  milliseconds patience) {
  const auto records = store.list_unsettled(role);
  if (!records) return;
  for (const OwnershipRecord& record : *records) {
    if (!mountpoint.empty() && record.mountpoint != mountpoint) continue;
    if (role == MigrationRole::kTarget) {
      (void)settle_target(store, record);
    } else if (settle_source(store, record, patience).unreachable) {
      return;
    }
  }
}

// A migration whose source mount has no daemon would wait for a person: the mount was made on
// demand and is gone after a reboot, or its daemon was killed. So the daemon of the node's target
// mount settles it, too.
void settle_orphans(const RecordStore& store, milliseconds patience) {
  const auto records = store.list_unsettled(MigrationRole::kSource);
  if (!records) return;
  for (const OwnershipRecord& record : *records) {
    const auto mount = find_mount(record.mountpoint);
    const bool is_served =
        mount && mount->remainder.empty() &&
        call(mount->mount.source, to_request(request::Status{}), patience).has_value();
    if (!is_served) (void)settle_source(store, record, patience);
  }
}

// Reports the open migrations to the mount's daemon, for its status and metrics: the daemon may not
// read the records.
void report_open(const RecordStore& store, MigrationRole role, const std::string& mountpoint) {
  const auto mount = find_mount(mountpoint);
  const auto open = store.list_unsettled(role);
  if (!mount || !mount->remainder.empty() || !open) return;
  request::NoteOpen note;
  for (const OwnershipRecord& record : *open) {
    if (record.mountpoint != mountpoint || home_of(record) == Home::kOtherNode) continue;
    note.migrations.push_back({.id = record.id,
                               .state = to_string(record.state()),
                               .since_ns = record.history().front().at_ns});
  }
  (void)call(mount->mount.source, to_request(note), kDaemonsPatience);
}

int SettleCommand::run() const {
  ignore_sigpipe();
  // Without the directory there never was a migration. RecordStore::open() would create it.
  if (access(state_directory.c_str(), F_OK) != 0) return to_int(ExitCode::kSuccess);
  const auto store = RecordStore::open(state_directory);
  if (!store) return to_int(ExitCode::kFailure);
  const MigrationRole of = role == "source" ? MigrationRole::kSource : MigrationRole::kTarget;
  settle_mount(*store, of, mountpoint, kDaemonsPatience);
  if (of == MigrationRole::kSource) settle_units_at_source(*store);
  report_open(*store, of, mountpoint);
  remove_abandoned_checkpoints(*store, of, mountpoint);
  if (of == MigrationRole::kTarget) settle_orphans(*store, kDaemonsPatience);
  remove_left_filter_rules(*store);
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
