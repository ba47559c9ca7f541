// Everything follows from the record of the source, the one place where it was decided: committed
// means that the target runs them, anything else that the source does. A target that is in doubt
// waits for its source to recover; nothing is ever guessed.
#include "restart_loader/cli/recover_command.h"

#include <fmt/format.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "mount/command_line/exit_code.h"
#include "mount/control/json_text.h"
#include "restart_loader/containers/container_fate.h"
#include "restart_loader/migration/command_error.h"
#include "restart_loader/migration/notify_target.h"
#include "restart_loader/migration/output.h"
#include "restart_loader/migration/supervisors.h"
#include "restart_loader/processes/frozen_tasks.h"
#include "restart_loader/processes/proc_files.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultPatience{10'000};
constexpr milliseconds kSettlePatience{2000};

struct Verdict {
  bool open = false;
  std::string what;
};

void warn(const Error& error) { print_to(stderr, "ppmr migrate: {}\n", error.message); }

bool stopped_by_us(const ProcessIdentity& task) {
  auto stat = read_process_stat(task.pid);
  return stat && stat->start_time_ticks == task.start_time && stat->state == 'T';
}

// The hooks do this. Here for the case that they were killed, too.
void let_source_run_on(const OwnershipRecord& record) {
  for (const TreeRecord& tree : record.trees) {
    if (Status settled = settle_container_at_source(record, tree); !settled) warn(settled.error());
  }
  if (!record.tasks_stopped) return;
  for (const TreeRecord& tree : record.trees) {
    for (const ProcessIdentity& task : tree.tasks) {
      if (!stopped_by_us(task)) continue;
      auto tasks = FrozenTasks::open({task});
      tasks ? tasks->let_go() : warn(tasks.error());
    }
  }
}

// Errors: something is alive here still.
Status kill_source(const RecordStore& store, OwnershipRecord& record) {
  if (!record.leave_running) {
    for (const TreeRecord& tree : record.trees) {
      auto tasks = FrozenTasks::open(tree.tasks);
      if (!tasks) return failure(tasks.error());
      tasks->kill();
    }
  }
  auto killed = store.change(record.id, record.role, [](OwnershipRecord& latest) -> Status {
    for (TreeRecord& tree : latest.trees) tree.phase = TreePhase::kComplete;
    return {};
  });
  if (killed) record = std::move(*killed);
  for (const TreeRecord& tree : record.trees) {
    if (Status settled = settle_container_at_source(record, tree); !settled) warn(settled.error());
  }
  return {};
}

std::string pids_of(const OwnershipRecord& record) {
  std::string text;
  for (const TreeRecord& tree : record.trees) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", tree.root, tree.name);
  }
  return text;
}

Verdict recover_source(const RecordStore& store, OwnershipRecord record, milliseconds patience) {
  if (is_over(record.state) && record.peer_notified) {
    return {false, fmt::format("{}; nothing is left to do", to_string(record.state))};
  }
  if (!is_over(record.state) && is_alive(record.coordinator)) {
    return {true, fmt::format("under way: {}, in the hands of ppmr migrate (pid {})",
                              to_string(record.state), record.coordinator.pid)};
  }
  if (!is_over(record.state) && record.state != MigrationState::kCommitted) {
    auto aborted = store.advance(record.id, record.role, MigrationState::kAborted,
                                 [](OwnershipRecord& latest) -> Status {
                                   latest.error = "interrupted before the decision, then recovered";
                                   return {};
                                 });
    // A hook may have been quicker, with the same.
    if (!aborted) return {true, aborted.error().message};
    record = std::move(*aborted);
  }
  const bool committed = record.state != MigrationState::kAborted;
  if (!committed) {
    let_source_run_on(record);
  } else if (Status killed = kill_source(store, record); !killed) {
    return {true, "was decided for the target, but what is left here could not be killed: " +
                      killed.error().message};
  }
  AgentClient agent(parse_endpoint(record.endpoint));
  const Status told = notify_target(store, agent, record, patience);
  const std::string decision = committed
                                   ? "was decided for the target; what was left here is killed"
                                   : "was not decided for the target; the processes run on here";
  if (!told) {
    return {true, fmt::format("{}, but the target could not be told: {}", decision,
                              told.error().message)};
  }
  return {false, decision + ", and the target knows"};
}

Verdict recover_target(const RecordStore& store, const OwnershipRecord& record) {
  using enum MigrationState;
  if (is_over(record.state)) {
    return {false, fmt::format("{}{}{}", to_string(record.state), record.error.empty() ? "" : ": ",
                               record.error)};
  }
  if (record.state == kRestoring) {
    bool kept = false;
    for (const TreeRecord& tree : record.trees) kept = kept || is_alive(tree.supervisor);
    if (kept) return {true, "being restored here"};
    auto aborted =
        store.advance(record.id, record.role, kAborted, [](OwnershipRecord& latest) -> Status {
          latest.error = "its restore was interrupted at the target";
          return {};
        });
    if (!aborted) return {true, aborted.error().message};
    return {false, "was interrupted before it was restored here: aborted"};
  }
  if (record.state == kReady) {
    return {true, fmt::format("restored here and stopped, in doubt: only the record of the source "
                              "({}) says whether it may run; ppmr migrate --recover {} there",
                              record.peer, record.id)};
  }
  if (record.state == kOwned) {
    return {true, fmt::format("belongs to this node, but the source ({}) has not said that it is "
                              "dead there; ppmr migrate --recover {} there",
                              record.peer, record.id)};
  }
  if (!record.error.empty()) return {true, record.error};
  const std::string failed = record.first_error();
  if (Status kept = ensure_supervisors(store, record); !kept) return {true, kept.error().message};
  if (!failed.empty()) return {true, "belongs to this node; tried again, after " + failed};
  return {true, "belongs to this node and is being started, or its memory is still coming in"};
}

// Of a coordinator that was killed before a hook held a tree: no hook will abort it.
void abort_if_abandoned(const RecordStore& store, OwnershipRecord& record) {
  const bool nothing_is_held =
      record.state == MigrationState::kPreparing || record.state == MigrationState::kDumping;
  if (!nothing_is_held || is_alive(record.coordinator)) return;
  auto aborted = store.advance(record.id, record.role, MigrationState::kAborted,
                               [](OwnershipRecord& latest) -> Status {
                                 latest.error = "its coordinator was killed";
                                 return {};
                               });
  if (aborted) record = *aborted;
}

}  // namespace

void settle_aborted(const RecordStore& store, const json& way) {
  auto records = store.list();
  if (!records) return;
  AgentClient agent(parse_endpoint(way));
  for (OwnershipRecord& record : *records) {
    if (record.role != MigrationRole::kSource || record.endpoint != way) continue;
    abort_if_abandoned(store, record);
    if (record.state != MigrationState::kAborted || record.peer_notified) continue;
    let_source_run_on(record);
    if (!notify_target(store, agent, record, kSettlePatience)) return;
  }
}

int RecoverCommand::run() const {
  ignore_sigpipe();
  auto store = RecordStore::open(state_directory);
  if (!store) return report("migrate", {ExitCode::kFailure, store.error().message}, json);
  std::vector<Error> unreadable;
  auto records = store->list(&unreadable);
  if (!records) return report("migrate", {ExitCode::kFailure, records.error().message}, json);
  bool open = false;
  bool found = false;
  for (const Error& error : unreadable) {
    open = true;
    print_to(stderr, "ppmr migrate: {}\n", error.message);
  }
  for (OwnershipRecord& record : *records) {
    if (!id.empty() && record.id != id) continue;
    const bool settled =
        is_over(record.state) && (record.role == MigrationRole::kTarget || record.peer_notified);
    if (id.empty() && settled) continue;
    found = true;
    const Verdict verdict = record.role == MigrationRole::kSource
                                ? recover_source(*store, record, timeout.value_or(kDefaultPatience))
                                : recover_target(*store, record);
    open = open || verdict.open;
    const auto now = store->read(record.id, record.role);
    const OwnershipRecord& after = now ? *now : record;
    if (json) {
      print_to(stdout, "{}\n",
               json_text({{"migration", record.id},
                          {"role", to_string(record.role)},
                          {"state", to_string(after.state)},
                          {"owner", after.owner()},
                          {"open", verdict.open},
                          {"what", verdict.what},
                          {"record", after}}));
    } else {
      print_to(stdout, "{} at the {}: {}: {}\n", record.id, to_string(record.role), pids_of(record),
               verdict.what);
    }
  }
  if (!found && !id.empty()) {
    return report("migrate",
                  {ExitCode::kUsage, "there is no migration " + id + " in " + state_directory},
                  json);
  }
  if (!found && !json) print_to(stdout, "no migration was interrupted here\n");
  return to_int(open ? ExitCode::kMigrationOpen : ExitCode::kSuccess);
}

}  // namespace ppmr
