// The decision and the steps after it: commit, hand-over to the target, end; or abort.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "daemon/control/mount_daemon.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/moved_memory.h"
#include "migration/relay/notify_target.h"
#include "migration/source/migration.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr milliseconds kLookSlice{1000};
// The time limit for the target's vote. The processes are frozen in the meantime.
constexpr milliseconds kVotePatience{5000};
constexpr milliseconds kNotifyAbortPatience{5000};

}  // namespace

// Sends SIGSTOP to all tasks, then checks that CRIU still holds every one of them. If CRIU does, no
// task has run since its dump, and none can run until the decision, even if CRIU is killed.
Status Migration::hold_tasks() {
  auto stopping = store_.change(id_, kRole, [](OwnershipRecord& record) -> Status {
    if (record.state() != MigrationState::kSealed) {
      return failure(EPERM, std::string("the migration is ") + to_string(record.state()) + ": " +
                                record.error);
    }
    record.tasks_stopped = !record.plan.original_goes_on;
    return {};
  });
  if (!stopping) return failure(stopping.error());
  if (settings_.plan.original_goes_on) return {};
  for (const TreeRecord& tree : stopping->trees) {
    auto tasks = FrozenTasks::open(tree.tasks);
    if (!tasks) return failure(tasks.error());
    frozen_.push_back(std::move(*tasks));
    frozen_.back().stop();
    if (Status held = frozen_.back().check_held_by(tree.criu.pid); !held) return held;
    if (frozen_.back().count() != tree.tasks.size()) {
      return failure(
          EBUSY, fmt::format("a process of the tree of process {} ended while the tree was frozen",
                             tree.root));
    }
  }
  return {};
}

// The target's `ready` may be out of date: a restore may have failed in the meantime, or a restart
// of the target's daemon has lost the images. A target that is `ready` may not abort by itself, so
// the coordinator asks it once more.
Status Migration::confirm_vote() {
  auto confirmed = agent_.insist({{"op", "vote"}, {"id", id_}}, kVotePatience);
  if (confirmed) return {};
  return failure(confirmed.error().errno_value,
                 "cannot confirm that the target is still ready: " + confirmed.error().message);
}

// With post-copy the source is still sending the memory. If that has failed, or if the source's
// daemon does not answer, the trees stay here.
Status Migration::check_memory() {
  if (!settings_.plan.may_run_before_memory()) return {};
  const auto alive = ask(settings_.mount, {{"op", "status"}});
  if (!alive) return failure(EIO, alive.error().message);
  MutexLock lock(mutex_);
  return first_failure_ ? Status(failure(*first_failure_)) : Status{};
}

Status Migration::commit() {
  Status confirmed = check_memory();
  if (confirmed) confirmed = hold_tasks();
  if (confirmed) confirmed = confirm_vote();
  if (confirmed) {
    auto committed = store_.advance(id_, kRole, MigrationState::kCommitted);
    // If advance() failed, the record on disk decides: it may say `committed`.
    const auto now = committed ? committed : store_.read(id_, kRole);
    if (!now) return failure(now.error());
    if (now->state() == MigrationState::kCommitted) {
      report_event({{"event", "committed"}});
      // From now on, a lost connection must not end the session that is sending the memory.
      for (const TreeRecord& tree : now->trees) wait_for_peer(*now, tree);
      return {};
    }
    confirmed = failure(committed.error());
  }
  for (const FrozenTasks& tasks : frozen_) tasks.resume();
  return confirmed;
}

// Notifies the target twice. The first notification says that the target owns the trees; the target
// records that durably. The second says that all tasks at the source are dead and that the target
// may let the restored trees run. With post-copy the tasks are then stopped and held instead of
// dead, because the target still reads their memory.
Status Migration::hand_over() {
  auto owned =
      agent_.insist({{"op", "decide"}, {"id", id_}, {"state", "owned"}}, settings_.hold_limit);
  if (!owned) return failure(owned.error());
  if (!settings_.plan.may_run_before_memory()) {
    for (const FrozenTasks& tasks : frozen_) tasks.kill();
  }
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
    // A hook may have recorded the end already.
    const bool ends = latest.peer_notified && latest.state() == MigrationState::kCommitted;
    return ends ? latest.move_to(MigrationState::kFinished) : Status{};
  });
}

void Migration::join_dumps() {
  for (Tree& tree : trees_) {
    if (tree.thread.joinable()) tree.thread.join();
  }
  const auto end = store_.read(id_, kRole);
  for (size_t i = 0; end && i < trees_.size(); ++i) {
    if (Status settled = settle_container_at_source(*end, end->trees[i]); !settled) {
      report_event({{"event", "warning"}, {"sentence", settled.error().message}}, &trees_[i]);
    }
  }
}

// Removes the checkpoints at the source. This keeps the daemon busy, so after a success call it
// when the processes run.
void Migration::remove_checkpoints() {
  for (Tree& tree : trees_) {
    if (tree.dump) tree.dump->remove_checkpoint();
  }
}

Status Migration::await_running() {
  std::vector<TreePhase> seen(trees_.size(), TreePhase::kReady);
  for (;;) {
    store_.note_contact(id_, kRole);
    auto target = look_at_target(kLookSlice, settings_.hold_limit);
    if (!target) {
      return failure(
          target.error().errno_value,
          fmt::format("committed, but the target became unreachable and may already run the "
                      "processes: {}. To see its progress, run `ppmr migrate --recover {}` there",
                      target.error().message, id_));
    }
    for (size_t i = 0; i < trees_.size() && i < target->trees.size(); ++i) {
      const TreePhase phase = target->trees[i].phase;
      if (phase >= TreePhase::kRunning && seen[i] < TreePhase::kRunning) {
        report_event({{"event", "running"},
                      {"lazily", settings_.plan.restores_lazily()},
                      {"post_copy", settings_.plan.may_run_before_memory()}},
                     &trees_[i]);
      }
      if (phase >= TreePhase::kComplete && seen[i] < TreePhase::kComplete) {
        report_event({{"event", "complete"}}, &trees_[i]);
      }
      seen[i] = phase;
    }
    if (!target->error.empty()) return failure(EFAULT, "at the target: " + target->error);
    if (!target->first_error().empty()) {
      return failure(
          EAGAIN,
          fmt::format("committed, but the target could not restore all processes: {}. Unfinished: "
                      "run `ppmr migrate --recover {}` at the target to try again",
                      target->first_error(), id_));
    }
    if (target->state() == MigrationState::kFinished) return {};
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
  Status notified;
  if (aborted) {
    // The target also removes the sealed checkpoints.
    notified = notify_target(store_, agent_, *aborted, kNotifyAbortPatience);
  } else {
    report_event({{"event", "warning"},
                  {"sentence", "dumped processes stay frozen until the abort can be recorded: " +
                                   aborted.error().message}});
  }
  fail_requests_if_silent(settings_.mount);
  has_given_up_ = true;
  join_dumps();
  remove_checkpoints();
  // A checkpoint that was sealed in the meantime belongs to the target, and only the target can
  // remove it.
  if (aborted && notified) (void)notify_target(store_, agent_, *aborted, kNotifyAbortPatience);
  // A hook may have recorded the abort in the meantime.
  const auto end = store_.read(id_, kRole);
  if (aborted || (end && end->state() == MigrationState::kAborted)) return {};
  return failure(aborted.error());
}

}  // namespace ppmr
