// The decision and the steps after it: commit, hand-over to the target, end; or abort.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/relay/agent_requests.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/moved_memory.h"
#include "migration/relay/unit_fate.h"
#include "migration/source/migration.h"
#include "migration/source/pause.h"
#include "processes/frozen_group.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr MigrationRole kRole = MigrationRole::kSource;
constexpr milliseconds kLookSlice{1000};
constexpr milliseconds kFillSlice{300};  // the interval of the fill's progress
// The time limit for the target's vote. The processes are frozen in the meantime.
constexpr milliseconds kVotePatience{5000};
constexpr milliseconds kNotifyAbortPatience{5000};
// If the request for a vote is older than this, the coordinator asks for the vote again.
constexpr milliseconds kVoteAge{1000};
constexpr milliseconds kBetweenTries{200};
constexpr milliseconds kOnceMore{500};
// The time limit of one attempt to reach the target. After each attempt, the coordinator reacts to
// an interruption.
constexpr milliseconds kAttempt{5000};

}  // namespace

// The hooks have stopped the tasks. If CRIU still holds every task, no other program has continued
// them since.
Status Migration::check_held() {
  if (settings_.plan.original_goes_on || settings_.plan.is_rehearsal) return {};
  const auto record = store_.read(id_, kRole);
  if (!record) return failure(record.error());
  for (const TreeRecord& tree : record->trees) {
    auto tasks = FrozenTasks::open(tree.tasks);
    if (!tasks) return failure(tasks.error());
    frozen_.push_back(std::move(*tasks));
    if (Status held = frozen_.back().check_held_by(tree.criu.pid); !held) return held;
    if (frozen_.back().count() != tree.tasks.size()) {
      return failure(
          EBUSY, fmt::format("a process of the tree of process {} ended while the tree was frozen",
                             tree.root));
    }
  }
  driver_.kill_with([this]() -> Status {
    for (const FrozenTasks& tasks : frozen_) tasks.kill();
    return {};
  });
  return {};
}

// With post-copy the source is still sending the memory. If that has failed, or if the source's
// daemon does not answer, the trees stay here.
Status Migration::check_memory() {
  if (!settings_.plan.may_run_before_memory()) return {};
  const auto alive = ask(settings_.mount, to_request(request::Status{}));
  if (!alive) return failure(EIO, alive.error().message);
  MutexLock lock(mutex_);
  return first_failure_ ? Status(failure(*first_failure_)) : Status{};
}

// The target's `ready` may be out of date: a restore may have failed in the meantime, or a restart
// of the target has lost what it had restored. So the target confirms its vote, and the decision
// follows at once: a coordinator that was stopped in between asks again.
Status Migration::commit() {
  if (Status memory = check_memory(); !memory) return memory;
  if (Status held = check_held(); !held) return held;
  const agent_request::Vote vote{agent_request::about(id_)};
  for (;;) {
    const auto asked_at = Clock::now();
    const auto answer = agent_.insist(to_request(vote), kVotePatience);
    auto voter = answer ? parse_record(answer->value("record", nlohmann::json()))
                        : Result<OwnershipRecord>(failure(answer.error()));
    if (!voter) {
      return failure(voter.error().errno_value,
                     "cannot confirm that the target is still ready: " + voter.error().message);
    }
    if (Clock::now() - asked_at > kVoteAge) continue;
    auto committed = driver_.take(source_event::Confirmed{voter->incarnation}, true);
    if (settings_.plan.is_rehearsal) return committed ? Status{} : failure(committed.error());
    if (!committed) {
      // The record on disk decides: it may say `committed`.
      const auto now = store_.read(id_, kRole);
      if (!now || now->state() != MigrationState::kCommitted) return failure(committed.error());
      committed = driver_.take(source_event::Look{});
      if (!committed) return failure(committed.error());
    }
    committed_ = std::move(*committed);
    report_.event({{"event", "committed"}});
    // From now on, a lost connection must not end the session that is sending the memory.
    for (const TreeRecord& tree : committed_.record.trees) wait_for_peer(committed_.record, tree);
    return {};
  }
}

// Kills the tasks here, and then requests from the target that the restored trees run. With
// post-copy the tasks stay stopped and held instead, because the target still reads their memory.
Status Migration::hand_over() {
  const auto deadline = Clock::now() + settings_.hold_limit;
  auto step = committed_;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const auto record =
        driver_.carry_out(step, agent_, std::min(left, kAttempt), /*until_notified=*/true);
    if (record && record->peer_notified) return {};
    if (stop_ && !std::exchange(told_of_interruption_, true)) {
      report_.warning(
          "interrupted after the decision: the target owns the processes; still trying to reach "
          "it");
    }
    if (Clock::now() > deadline) {
      return record ? failure(EHOSTUNREACH, driver_.obstacle()) : failure(record.error());
    }
    store_.note_contact(id_, kRole);
    std::this_thread::sleep_for(kBetweenTries);
    if (auto again = driver_.take(source_event::Look{})) step = std::move(*again);
  }
}

// Kills what hand_over() has not killed, and lets the hooks end. Adds nothing to the downtime:
// after a successful hand_over() the target already lets the processes run.
void Migration::end_source() {
  driver_.know_memory_needed(false);
  const auto record = driver_.drive(agent_, kVotePatience);
  if (record && record->all_trees(TreePhase::kComplete)) return;
  // The target does not answer, but it has the memory: nothing here is needed any more.
  for (const FrozenTasks& tasks : frozen_) tasks.kill();
  (void)driver_.take(source_event::TasksDead{});
}

void Migration::join_dumps() {
  for (Tree& tree : trees_) {
    if (tree.thread.joinable()) tree.thread.join();
  }
  const auto end = store_.read(id_, kRole);
  for (size_t i = 0; end && i < trees_.size(); ++i) {
    if (Status settled = settle_container_at_source(*end, end->trees[i]); !settled) {
      report_.warning(settled.error().message, i);
    }
  }
  if (end && end->plan.may_run_before_memory()) remove_frozen_groups(end->id);
}

// If this fails, a settler settles the unit later.
void Migration::settle_unit() const {
  const auto end = store_.read(id_, kRole);
  const Status settled = end ? settle_unit_at_source(*end) : failure(end.error());
  if (!settled) report_.warning(settled.error().message);
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
    auto target = look_at_target(kFillSlice, settings_.hold_limit);
    if (!target) {
      return failure(
          target.error().errno_value,
          fmt::format("committed, but the target became unreachable and may already run the "
                      "processes: {}. To see its progress, run `ppmr migrate --recover {}` there",
                      target.error().message, id_));
    }
    (void)driver_.take(source_event::TargetSays{view_of(*target)});
    for (size_t i = 0; i < trees_.size() && i < target->trees.size(); ++i) {
      const TreePhase phase = target->trees[i].phase;
      const bool lost = !target->trees[i].lost.empty();
      if (phase >= TreePhase::kRunning && seen[i] < TreePhase::kRunning && !lost) {
        report_.event({{"event", "running"},
                       {"lazily", settings_.plan.restores_lazily()},
                       {"post_copy", settings_.plan.may_run_before_memory()}},
                      i);
      }
      if (phase >= TreePhase::kComplete && seen[i] < TreePhase::kComplete && !lost) {
        report_.event({{"event", "complete"}}, i);
      }
      seen[i] = phase;
    }
    report_.fill(seen, missing_bytes_);
    if (target->state() == MigrationState::kAborted) {
      return failure(EFAULT, "LOST: the target lost the processes: " + target->error);
    }
    if (target->state() == MigrationState::kFinished) {
      return target->has_losses() ? Status(failure(EFAULT, "at the target: " + target->losses()))
                                  : Status{};
    }
    if (!target->has_losses() && !target->first_error().empty()) {
      return failure(
          EAGAIN,
          fmt::format("committed, but the target could not restore all processes: {}. The target "
                      "tries again; to do so at once, run `ppmr migrate --recover {}` there",
                      target->first_error(), id_));
    }
    if (stop_) {
      return failure(EINTR,
                     fmt::format("interrupted after the commit: the target continues. To see "
                                 "its progress, run `ppmr migrate --recover {}` there",
                                 id_));
    }
  }
}

MigrationOutcome Migration::end_rehearsal() {
  report_.event({{"event", "rehearsed"}});
  const Status discarded = abort({0, ""});
  resume_rdma_here();
  if (discarded) return outcome(ExitCode::kSuccess, "");
  return outcome(ExitCode::kMigrationOpen,
                 fmt::format("rehearsed, but not discarded: {}. Run `ppmr migrate --recover {}` "
                             "here",
                             discarded.error().message, id_));
}

Status Migration::abort(const Error& why) {
  auto step = driver_.take(source_event::GiveUp{why.message});
  if (!why.message.empty()) report_.event({{"event", "aborted"}, {"error", why.message}});
  if (step) {
    // The target also removes the sealed checkpoints.
    (void)driver_.carry_out(std::move(*step), agent_, kNotifyAbortPatience);
  } else {
    report_.warning("dumped processes stay frozen until the abort can be recorded: " +
                    step.error().message);
  }
  fail_requests_if_silent(settings_.mount);
  has_given_up_ = true;
  if (step) (void)abandon_rounds(store_.path_of(id_, kRole));
  join_dumps();
  remove_checkpoints();
  // A hook may have recorded the abort in the meantime. CRIU holds no task any more.
  const bool reached = step && driver_.obstacle().empty();
  const auto end = driver_.drive(agent_, reached ? kNotifyAbortPatience : kOnceMore);
  if (!end || end->state() != MigrationState::kAborted) {
    return step ? Status(failure(EPERM, "the decision was made by another program"))
                : failure(step.error());
  }
  // A checkpoint that was sealed in the meantime belongs to the target, and only the target can
  // remove it.
  if (end->peer_notified) {
    const agent_request::Decide again{agent_request::about(id_), MigrationState::kAborted, ""};
    (void)agent_.insist(to_request(again), kNotifyAbortPatience);
  }
  return {};
}

}  // namespace ppmr
