// The decision is in the source's record. If the record is committed, the target runs the
// processes; otherwise the source runs them. A target in doubt waits until its source recovers. It
// never guesses.
#include "cli/recover_command.h"

#include <fmt/format.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/moved_memory.h"
#include "migration/relay/notify_target.h"
#include "migration/target/supervisors.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/frozen_tasks.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout{10'000};
constexpr milliseconds kSettleTimeout{2000};
constexpr milliseconds kResumePatience{2000};

struct Verdict {
  bool open = false;
  std::string what;
};

void warn(const Error& error) { print_to(stderr, "ppmr migrate: {}\n", error.message); }

bool is_stopped(const ProcessIdentity& task) {
  auto stat = read_process_stat(task.pid);
  return stat && stat->start_time_ticks == task.start_time && stat->state == 'T';
}

void settle_containers(const OwnershipRecord& record) {
  for (const TreeRecord& tree : record.trees) {
    if (Status settled = settle_container_at_source(record, tree); !settled) warn(settled.error());
  }
}

void resume_rdma_of(const OwnershipRecord& record) {
  std::vector<pid_t> roots;
  for (const TreeRecord& tree : record.trees) {
    if (check_identity({tree.root, tree.root_start_time}, record.boot_id)) {
      roots.push_back(tree.root);
    }
  }
  if (Status resumed = resume_rdma(roots, kResumePatience); !resumed) warn(resumed.error());
}

// Resumes the processes and containers at the source. Normally the hooks do that, but a signal may
// have killed the hooks.
void resume_source(const OwnershipRecord& record) {
  settle_containers(record);
  for (const TreeRecord& tree : record.trees) {
    for (const ProcessIdentity& task : tree.tasks) {
      if (!record.tasks_stopped || !is_stopped(task)) continue;
      auto tasks = FrozenTasks::open({task});
      tasks ? tasks->resume() : warn(tasks.error());
    }
  }
  resume_rdma_of(record);
}

// After an error some of the processes may still be alive at the source.
Status kill_source(const RecordStore& store, OwnershipRecord& record) {
  if (!record.plan.original_goes_on) {
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
  settle_containers(record);
  return {};
}

std::string pids_of(const OwnershipRecord& record) {
  std::string text;
  for (const TreeRecord& tree : record.trees) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", tree.root, tree.name);
  }
  return text;
}

Verdict recover_source(const RecordStore& store, OwnershipRecord record, milliseconds timeout) {
  if (is_over(record.state()) && record.peer_notified) {
    return {false, fmt::format("{}; complete", to_string(record.state()))};
  }
  if (!is_over(record.state()) && is_alive(record.coordinator)) {
    return {true, fmt::format("in progress: {}; ppmr migrate (pid {}) runs it",
                              to_string(record.state()), record.coordinator.pid)};
  }
  if (!is_over(record.state()) && record.state() != MigrationState::kCommitted) {
    auto aborted = store.advance(
        record.id, record.role, MigrationState::kAborted, [](OwnershipRecord& latest) -> Status {
          latest.error = "interrupted before the decision, then aborted by --recover";
          return {};
        });
    // The abort fails if the coordinator has committed in the meantime, or if the record is not
    // writable.
    if (!aborted) return {true, aborted.error().message};
    record = std::move(*aborted);
  }
  const bool committed = record.state() != MigrationState::kAborted;
  for (const TreeRecord& tree : record.trees) {
    if (committed && tree.phase != TreePhase::kComplete && needs_frozen_pages(record, tree)) {
      return {true, fmt::format("committed: the target owns the processes, but does not have all "
                                "memory of process {} yet; its frozen pages stay here until then",
                                tree.root)};
    }
  }
  if (!committed) {
    resume_source(record);
  } else if (Status killed = kill_source(store, record); !killed) {
    return {true,
            "committed, but cannot kill the processes that remain here: " + killed.error().message};
  }
  AgentClient agent(parse_endpoint(record.endpoint));
  const Status notified = notify_target(store, agent, record, timeout);
  const std::string decision = committed
                                   ? "committed: the processes run at the target, none remains here"
                                   : "aborted: the processes continue here";
  if (!notified) {
    return {true, fmt::format("{}, but the target did not acknowledge it: {}", decision,
                              notified.error().message)};
  }
  return {false, decision + "; the target has acknowledged it"};
}

Verdict recover_target(const RecordStore& store, const OwnershipRecord& record) {
  using enum MigrationState;
  if (is_over(record.state())) {
    return {false, fmt::format("{}{}{}", to_string(record.state()),
                               record.error.empty() ? "" : ": ", record.error)};
  }
  if (record.state() == kRestoring) {
    bool supervised = false;
    for (const TreeRecord& tree : record.trees)
      supervised = supervised || is_alive(tree.supervisor);
    if (supervised) return {true, "the restore is in progress here"};
    auto aborted =
        store.advance(record.id, record.role, kAborted, [](OwnershipRecord& latest) -> Status {
          latest.error = "the restore was interrupted at the target";
          return {};
        });
    if (!aborted) return {true, aborted.error().message};
    return {false, "aborted: the restore was interrupted here"};
  }
  if (record.state() == kReady) {
    return {true, fmt::format("in doubt: restored and stopped here; the source ({}) has the "
                              "decision: run ppmr migrate --recover {} there",
                              record.peer, record.id)};
  }
  if (record.state() == kOwned) {
    return {true, fmt::format("belongs to this node, but the source ({}) has not confirmed that "
                              "its processes are dead: run ppmr migrate --recover {} there",
                              record.peer, record.id)};
  }
  if (!record.error.empty()) return {true, record.error};
  const std::string failed = record.first_error();
  if (Status started = ensure_supervisors(store, record); !started) {
    return {true, started.error().message};
  }
  if (!failed.empty())
    return {true, "belongs to this node; the restore is tried again after: " + failed};
  return {true, "belongs to this node; the restore is in progress"};
}

// Aborts a migration whose coordinator was killed before a hook held a tree. In this case there is
// no hook that aborts the migration.
void abort_if_abandoned(const RecordStore& store, OwnershipRecord& record) {
  const bool holds_no_tree =
      record.state() == MigrationState::kPreparing || record.state() == MigrationState::kDumping;
  if (!holds_no_tree || is_alive(record.coordinator)) return;
  auto aborted = store.advance(record.id, record.role, MigrationState::kAborted,
                               [](OwnershipRecord& latest) -> Status {
                                 latest.error = "the coordinator was killed";
                                 return {};
                               });
  if (aborted) record = *aborted;
}

}  // namespace

void settle_aborted(const RecordStore& store, const json& endpoint) {
  auto records = store.list_unsettled();
  if (!records) return;
  AgentClient agent(parse_endpoint(endpoint));
  for (OwnershipRecord& record : *records) {
    if (record.endpoint != endpoint) continue;
    abort_if_abandoned(store, record);
    if (record.state() != MigrationState::kAborted || record.peer_notified) continue;
    resume_source(record);
    if (!notify_target(store, agent, record, kSettleTimeout)) return;
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
    // If the relay was killed before it removed the moved container, runc still has the container:
    // removes it. After an abort, settle_container_at_source() would resume the container, although
    // the operator may have paused it since.
    if (record.role == MigrationRole::kSource && record.state() == MigrationState::kFinished) {
      settle_containers(record);
    }
    const bool settled =
        is_over(record.state()) && (record.role == MigrationRole::kTarget || record.peer_notified);
    if (id.empty() && settled) continue;
    found = true;
    const Verdict verdict = record.role == MigrationRole::kSource
                                ? recover_source(*store, record, timeout.value_or(kDefaultTimeout))
                                : recover_target(*store, record);
    open = open || verdict.open;
    const auto now = store->read(record.id, record.role);
    const OwnershipRecord& after = now ? *now : record;
    if (json) {
      print_to(stdout, "{}\n",
               json_text({{"migration", record.id},
                          {"role", to_string(record.role)},
                          {"state", to_string(after.state())},
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
    return report("migrate", {ExitCode::kUsage, "no migration " + id + " in " + state_directory},
                  json);
  }
  if (!found && !json) print_to(stdout, "no interrupted migration\n");
  return to_int(open ? ExitCode::kMigrationOpen : ExitCode::kSuccess);
}

}  // namespace ppmr
