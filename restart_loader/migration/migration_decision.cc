// The decision and what follows from it: the kill here, the word to the target, the end; or the
// abort.
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
constexpr milliseconds kTellAbortPatience{5000};

}  // namespace

// From the first SIGSTOP on nothing of the trees can run, whoever dies; the record decides whether
// they ever will again here.
Status Migration::commit() {
  auto stopping = store_.change(id_, kRole, [](OwnershipRecord& record) -> Status {
    if (record.state != MigrationState::kSealed) {
      return failure(
          EPERM, std::string("the migration is ") + to_string(record.state) + ": " + record.error);
    }
    record.tasks_stopped = !record.leave_running;
    return {};
  });
  if (!stopping) return failure(stopping.error());
  Status held;
  if (!settings_.leave_running) {
    for (const TreeRecord& tree : stopping->trees) {
      auto tasks = FrozenTasks::open(tree.tasks);
      if (!tasks) {
        held = failure(tasks.error());
        break;
      }
      frozen_.push_back(std::move(*tasks));
      frozen_.back().stop();
      if (held) held = frozen_.back().check_held_by(tree.criu.pid);
      if (held && frozen_.back().count() != tree.tasks.size()) {
        held = failure(EBUSY, fmt::format("a task of process {} has ended", tree.root));
      }
    }
  }
  if (held) {
    auto committed = store_.advance(id_, kRole, MigrationState::kCommitted);
    if (committed) {
      tell({{"event", "committed"}});
      return {};
    }
    // It may be written all the same: what is written decides.
    const auto now = store_.read(id_, kRole);
    if (!now) return failure(now.error());
    if (now->state == MigrationState::kCommitted) {
      tell({{"event", "committed"}});
      return {};
    }
    held = failure(committed.error());
  }
  for (const FrozenTasks& tasks : frozen_) tasks.let_go();
  return held;
}

// The target hears twice: that it owns them (it keeps that promise whatever happens here), and,
// when nothing is left alive here, that it may let them run.
Status Migration::hand_over() {
  auto owned =
      agent_.insist({{"op", "decide"}, {"id", id_}, {"state", "owned"}}, settings_.hold_limit);
  if (!owned) return failure(owned.error());
  for (const FrozenTasks& tasks : frozen_) tasks.kill();
  auto running =
      agent_.insist({{"op", "decide"}, {"id", id_}, {"state", "running"}}, settings_.hold_limit);
  if (!running) return failure(running.error());
  told_ = true;
  return {};
}

// Off the way of the processes: they run at the target already. The hooks go on from here.
void Migration::kill_tasks() {
  for (const FrozenTasks& tasks : frozen_) tasks.kill();
  frozen_.clear();
  (void)store_.change(id_, kRole, [&](OwnershipRecord& latest) -> Status {
    for (TreeRecord& tree : latest.trees) tree.phase = TreePhase::kComplete;
    latest.peer_notified = latest.peer_notified || told_;
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
      tell({{"event", "warning"}, {"sentence", settled.error().message}}, &trees_[i]);
    }
  }
}

Status Migration::await_running() {
  std::vector<TreePhase> seen(trees_.size(), TreePhase::kReady);
  for (;;) {
    auto target = look_at_target(kLookSlice, settings_.hold_limit);
    if (!target) {
      return failure(target.error().errno_value,
                     "the target was told to let the processes run, but not heard of since: " +
                         target.error().message);
    }
    for (size_t i = 0; i < trees_.size() && i < target->trees.size(); ++i) {
      const TreePhase phase = target->trees[i].phase;
      if (phase >= TreePhase::kRunning && seen[i] < TreePhase::kRunning) {
        tell({{"event", "running"}, {"lazily", target->trees[i].lazily}}, &trees_[i]);
      }
      if (phase >= TreePhase::kComplete && seen[i] < TreePhase::kComplete) {
        tell({{"event", "complete"}}, &trees_[i]);
      }
      seen[i] = phase;
    }
    if (!target->error.empty()) return failure(EFAULT, "at the target: " + target->error);
    if (!target->first_error().empty()) {
      return failure(EAGAIN,
                     fmt::format("not restored at the target, to which it belongs: {}. ppmr "
                                 "migrate --recover {} there tries again",
                                 target->first_error(), id_));
    }
    if (target->state == MigrationState::kFinished) return {};
    if (stop_) {
      return failure(EINTR, fmt::format("interrupted: the processes belong to the target, which "
                                        "goes on; ppmr migrate --recover {} there says how far it "
                                        "is",
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
  tell({{"event", "aborted"}, {"error", why.message}});
  if (aborted) {
    // This also makes the target remove the checkpoints, which ends dumps that are under way.
    (void)notify_target(store_, agent_, *aborted, kTellAbortPatience);
  } else {
    tell({{"event", "warning"},
          {"sentence",
           "what was dumped stays frozen until it can be written down that it is given "
           "up: " +
               aborted.error().message}});
  }
  join_dumps();
  // Its hooks may have written it down meanwhile.
  const auto end = store_.read(id_, kRole);
  if (aborted || (end && end->state == MigrationState::kAborted)) return {};
  return failure(aborted.error());
}

}  // namespace ppmr
