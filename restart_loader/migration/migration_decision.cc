// The decision and the steps after it: commit, hand-over to the target, end; or abort.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "restart_loader/containers/container_fate.h"
#include "restart_loader/migration/migration.h"
#include "restart_loader/migration/notify_target.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr milliseconds kLookSlice{1000};
// How long the target may be unreachable: the processes are frozen meanwhile.
constexpr milliseconds kVotePatience{5000};
constexpr milliseconds kNotifyAbortPatience{5000};

}  // namespace

// Sends SIGSTOP to all tasks, then checks that CRIU still holds every one of them: so none has run
// since its dump, and none can run until the record says who owns it, even if CRIU is killed.
Status Migration::hold_tasks() {
  auto stopping = store_.change(id_, kRole, [](OwnershipRecord& record) -> Status {
    if (record.state != MigrationState::kSealed) {
      return failure(
          EPERM, std::string("the migration is ") + to_string(record.state) + ": " + record.error);
    }
    record.tasks_stopped = !record.leave_running;
    return {};
  });
  if (!stopping) return failure(stopping.error());
  if (settings_.leave_running) return {};
  for (const TreeRecord& tree : stopping->trees) {
    auto tasks = FrozenTasks::open(tree.tasks);
    if (!tasks) return failure(tasks.error());
    frozen_.push_back(std::move(*tasks));
    frozen_.back().stop();
    if (Status held = frozen_.back().check_held_by(tree.criu.pid); !held) return held;
    if (frozen_.back().count() != tree.tasks.size()) {
      return failure(EBUSY,
                     fmt::format("a process of the tree of process {} has ended", tree.root));
    }
  }
  return {};
}

// The target's `ready` may be out of date: a restore may have failed since, or the target's daemon
// was restarted and its images are gone. A target in doubt may not abort, so the coordinator asks.
Status Migration::confirm_vote() {
  auto confirmed = agent_.insist({{"op", "vote"}, {"id", id_}}, kVotePatience);
  if (confirmed) return {};
  return failure(confirmed.error().errno_value,
                 "cannot confirm the target's vote: " + confirmed.error().message);
}

Status Migration::commit() {
  Status confirmed = hold_tasks();
  if (confirmed) confirmed = confirm_vote();
  if (confirmed) {
    auto committed = store_.advance(id_, kRole, MigrationState::kCommitted);
    // Even if writing failed, the record on disk decides.
    const auto now = committed ? committed : store_.read(id_, kRole);
    if (!now) return failure(now.error());
    if (now->state == MigrationState::kCommitted) {
      report_event({{"event", "committed"}});
      return {};
    }
    confirmed = failure(committed.error());
  }
  for (const FrozenTasks& tasks : frozen_) tasks.resume();
  return confirmed;
}

// Notifies the target twice: that it owns the trees, which it records durably; and, once all tasks
// here are dead, that it may let them run.
Status Migration::hand_over() {
  auto owned =
      agent_.insist({{"op", "decide"}, {"id", id_}, {"state", "owned"}}, settings_.hold_limit);
  if (!owned) return failure(owned.error());
  for (const FrozenTasks& tasks : frozen_) tasks.kill();
  auto running =
      agent_.insist({{"op", "decide"}, {"id", id_}, {"state", "running"}}, settings_.hold_limit);
  if (!running) return failure(running.error());
  target_runs_ = true;
  return {};
}

// Kills the tasks that hand_over() has not killed, and lets the hooks end. Adds nothing to the
// downtime: after a successful hand_over() the target already lets the processes run.
void Migration::kill_tasks() {
  for (const FrozenTasks& tasks : frozen_) tasks.kill();
  frozen_.clear();
  (void)store_.change(id_, kRole, [&](OwnershipRecord& latest) -> Status {
    for (TreeRecord& tree : latest.trees) tree.phase = TreePhase::kComplete;
    latest.peer_notified = latest.peer_notified || target_runs_;
    if (latest.peer_notified) latest.state = MigrationState::kFinished;
    return {};
  });
}

void Migration::join_dumps() {
  for (Tree& tree : trees_) {
    if (tree.thread.joinable()) tree.thread.join();
    if (tree.dump) tree.dump->remove_checkpoint();
  }
  const auto end = store_.read(id_, kRole);
  for (size_t i = 0; end && i < trees_.size(); ++i) {
    if (Status settled = settle_container_at_source(*end, end->trees[i]); !settled) {
      report_event({{"event", "warning"}, {"sentence", settled.error().message}}, &trees_[i]);
    }
  }
}

Status Migration::await_running() {
  std::vector<TreePhase> seen(trees_.size(), TreePhase::kReady);
  for (;;) {
    auto target = look_at_target(kLookSlice, settings_.hold_limit);
    if (!target) {
      return failure(target.error().errno_value,
                     "the target may run the processes, but has been unreachable since: " +
                         target.error().message);
    }
    for (size_t i = 0; i < trees_.size() && i < target->trees.size(); ++i) {
      const TreePhase phase = target->trees[i].phase;
      if (phase >= TreePhase::kRunning && seen[i] < TreePhase::kRunning) {
        report_event({{"event", "running"}, {"lazily", target->trees[i].lazily}}, &trees_[i]);
      }
      if (phase >= TreePhase::kComplete && seen[i] < TreePhase::kComplete) {
        report_event({{"event", "complete"}}, &trees_[i]);
      }
      seen[i] = phase;
    }
    if (!target->error.empty()) return failure(EFAULT, "at the target: " + target->error);
    if (!target->first_error().empty()) {
      return failure(EAGAIN,
                     fmt::format("committed, but the target could not restore: {}. Unfinished: "
                                 "run `ppmr migrate --recover {}` at the target to try again",
                                 target->first_error(), id_));
    }
    if (target->state == MigrationState::kFinished) return {};
    if (stop_) {
      return failure(EINTR,
                     fmt::format("interrupted after the commit: the target continues. To see "
                                 "its progress, run `ppmr migrate --recover {}` there",
                                 id_));
    }
  }
}

Status Migration::abort(const Error& why) {
  auto aborted =
      store_.advance(id_, kRole, MigrationState::kAborted, [&](OwnershipRecord& record) -> Status {
        record.error = why.message;
        return {};
      });
  report_event({{"event", "aborted"}, {"error", why.message}});
  if (aborted) {
    // This also makes the target remove the checkpoints, which ends dumps in progress.
    (void)notify_target(store_, agent_, *aborted, kNotifyAbortPatience);
  } else {
    report_event({{"event", "warning"},
                  {"sentence", "dumped processes stay frozen until the abort can be recorded: " +
                                   aborted.error().message}});
  }
  join_dumps();
  // A hook may have recorded the abort meanwhile.
  const auto end = store_.read(id_, kRole);
  if (aborted || (end && end->state == MigrationState::kAborted)) return {};
  return failure(aborted.error());
}

}  // namespace ppmr
