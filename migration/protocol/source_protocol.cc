// The order that keeps a process from being lost or doubled:
//
//   1. Until the record says `committed`, every event that goes wrong ends in `aborted`, and the
//      source's copy goes on. The target cannot run its copy, because it has received no decision.
//   2. `frozen` says that no task has run since its dump, and that none will run before an abort is
//      on the disk, even if CRIU is killed: each has a SIGSTOP. The record names the tasks before
//      the signal is sent, so that the program that aborts can undo it.
//   3. `committed` needs three things at once: every image is verified (`sealed`), CRIU still holds
//      the tasks, and the target confirms its vote now, in the same incarnation that prepared: same
//      boot, same daemon, checkpoint in place, disk writable.
//   4. After `committed` the source only ever moves forward: it kills its copy and then tells the
//      target to run. In post-copy it tells the target first, and kills when the memory has moved:
//      the stopped copy never runs again.
//
// A restart of the source's node kills its copy. So a record of an earlier boot that is not
// committed is not aborted at once: if it is frozen and the target is ready, the target's copy is
// the only one, and the source hands over.
#include "migration/protocol/source_protocol.h"

#include <algorithm>

#include "migration/protocol/protocol_step.h"

namespace ppmr {
namespace {

using enum MigrationState;

constexpr const char* kEndedWithNode =
    "its processes ended when their node was restarted, before the target had all of them";

Error over(const OwnershipRecord& record) {
  return {ECANCELED, std::string("the migration is ") + to_string(record.state()) +
                         (record.error.empty() ? "" : ": " + record.error)};
}

bool is_decided(const OwnershipRecord& record) {
  return record.state() == kCommitted || record.state() == kFinished;
}

class Step : private ProtocolStep<SourceFacts> {
 public:
  using ProtocolStep::ProtocolStep;

  Result<SourceStep> take(const SourceEvent& event) {
    if (Status home = check_home(); !home) return failure(home.error());
    const Status taken = std::visit([this](const auto& what) { return on(what); }, event);
    if (!taken) return failure(taken.error());
    finish_if_done();
    plan_actions();
    return SourceStep{std::move(record_), changed_, std::move(actions_)};
  }

 private:
  Status abort(const std::string& why) {
    record_.error = why;
    if (node_was_restarted()) {
      record_.tasks_resumed = true;  // there is nothing to resume
      // A rehearsal counts no losses: the restart would have ended the processes without it, too.
      if (!record_.plan.original_goes_on && !record_.plan.is_rehearsal) {
        for (TreeRecord& tree : record_.trees) tree.lost = kEndedWithNode;
      }
    }
    return move_to(kAborted);
  }

  Status on(const source_event::Prepared& event) {
    if (is_over(record_.state()) || node_was_restarted()) return failure(over(record_));
    record_.peer = event.peer;
    record_.peer_node_id = event.node_id;
    record_.peer_state_directory = event.state_directory;
    record_.incarnation = event.incarnation;
    return move_to(kDumping);
  }

  Status on(const source_event::DumpBegins& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (is_over(record_.state()) || node_was_restarted()) return failure(over(record_));
    (*tree)->phase = TreePhase::kDumping;
    (*tree)->dump_began_ns = facts_.now_ns;
    (*tree)->stopped_before = event.stopped_before;
    changed_ = true;
    return {};
  }

  Status on(const source_event::Held& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (record_.state() != kDumping || node_was_restarted()) return failure(over(record_));
    (*tree)->tasks = event.tasks;
    (*tree)->criu = event.criu;
    (*tree)->phase = TreePhase::kHeld;
    (*tree)->held_ns = facts_.now_ns;
    changed_ = true;
    if (record_.plan.original_goes_on) return stopped(**tree);
    record_.tasks_stopped = true;
    return {};
  }

  Status on(const source_event::Stopped& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (record_.state() != kDumping || node_was_restarted()) return failure(over(record_));
    if ((*tree)->phase != TreePhase::kHeld) return failure(over(record_));
    return stopped(**tree);
  }

  Status stopped(TreeRecord& tree) {
    tree.phase = TreePhase::kStopped;
    changed_ = true;
    return record_.all_trees(TreePhase::kStopped) ? move_to(kFrozen) : Status{};
  }

  Status on(const source_event::Sealed& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (is_over(record_.state()) || node_was_restarted()) return failure(over(record_));
    if ((*tree)->phase < TreePhase::kStopped) {
      return failure(EAGAIN, "the tree of process " + std::to_string((*tree)->root) +
                                 " is sealed, but not yet stopped");
    }
    (*tree)->phase = std::max((*tree)->phase, TreePhase::kSealed);
    (*tree)->sealed_ns = facts_.now_ns;
    (*tree)->freeze_began_ns = event.freeze_began_ns;
    (*tree)->rounds = event.rounds;
    changed_ = true;
    const bool all = record_.state() == kFrozen && record_.all_trees(TreePhase::kSealed);
    return all ? move_to(kSealed) : Status{};
  }

  Status on(const source_event::Confirmed& event) {
    if (is_decided(record_)) return {};
    if (record_.state() == kAborted) return failure(over(record_));
    if (event.incarnation != record_.incarnation) {
      return failure(ESTALE,
                     "the target was restarted since it prepared the migration: what it had "
                     "restored is gone");
    }
    if (node_was_restarted() || record_.state() != kSealed) return failure(over(record_));
    if (record_.plan.is_rehearsal) return end_rehearsal();
    if (!facts_.tasks_held && !record_.plan.original_goes_on) {
      return failure(EBUSY, "CRIU no longer holds the frozen processes");
    }
    return commit();
  }

  // Here a move would be decided. An abort without a cause says that the rehearsal has succeeded.
  Status end_rehearsal() { return abort(""); }

  // The original of a copy goes on: there is nothing to kill.
  Status commit() {
    if (record_.plan.original_goes_on) mark_dead();
    return move_to(kCommitted);
  }

  Status on(const source_event::TargetSays& event) {
    const TargetView& target = event.target;
    const bool has_ended = !target.has_record || target.state == kAborted;
    switch (record_.state()) {
      case kAborted:
        // A target that has no record never received `prepare`, and has nothing to undo.
        if (!has_ended || record_.peer_notified) return {};
        record_.peer_notified = changed_ = true;
        return {};
      case kCommitted:
        return after_decision(target, has_ended);
      case kFinished:
        return note_losses(target), Status{};
      default:
        return before_decision(target, has_ended);
    }
  }

  Status before_decision(const TargetView& target, bool has_ended) {
    if (!target.has_record && record_.state() == kPreparing && !node_was_restarted()) return {};
    if (has_ended) {
      const std::string why = !target.has_record     ? "it has no record of the migration"
                              : target.error.empty() ? "it gave no reason"
                                                     : target.error;
      record_.peer_notified = true;
      return abort("the target aborted: " + why);
    }
    if (target.state != kReady && target.state != kRestoring) {
      return failure(EPROTO, std::string("the target is ") + to_string(target.state) +
                                 ", but this node has not decided");
    }
    return node_was_restarted() ? hand_over(target) : Status{};
  }

  // The target has the only copy. A target that is ready has verified every image, so `frozen`
  // becomes `sealed` and then `committed`. The source needs no confirmed vote: if the target has
  // lost its copy since, the tree is lost in any case, and the target will report that. Before
  // `frozen`, the source's copy may have run after its dump, if CRIU was killed: then the target's
  // copy is out of date.
  Status hand_over(const TargetView& target) {
    if (record_.plan.is_rehearsal) return abort("the node was restarted during the rehearsal");
    if (record_.plan.may_run_before_memory()) {
      return abort("the node was restarted before the target had the memory (post-copy)");
    }
    if (target.state != kReady) return {};  // the target will become ready, or will abort
    switch (record_.state()) {
      case kFrozen:
        return move_to(kSealed);
      case kSealed:
        return commit();
      default:
        return abort("the node was restarted before all trees were frozen");
    }
  }

  Status after_decision(const TargetView& target, bool has_ended) {
    if (has_ended) {
      const std::string why =
          target.has_record ? target.error : "it no longer has a record of the migration";
      for (TreeRecord& tree : record_.trees) {
        tree.lost = "the target lost it: " + why;
      }
      record_.error = "the target lost the processes after the decision: " + why;
    } else if (target.state != MigrationState::kRunning && target.state != kFinished) {
      return {};
    }
    note_losses(target);
    needs_no_memory_ = has_ended || target.state == kFinished;
    if (!record_.peer_notified) record_.peer_notified = changed_ = true;
    return {};
  }

  void note_losses(const TargetView& target) {
    for (size_t i = 0; i < record_.trees.size() && i < target.lost.size(); ++i) {
      if (target.lost[i].empty() || !record_.trees[i].lost.empty()) continue;
      record_.trees[i].lost = target.lost[i];
      changed_ = true;
    }
  }

  Status on(const source_event::TasksDead&) {
    if (!is_decided(record_)) return failure(over(record_));
    mark_dead();
    return {};
  }

  void mark_dead() {
    for (TreeRecord& tree : record_.trees) {
      changed_ = changed_ || tree.phase != TreePhase::kComplete;
      tree.phase = TreePhase::kComplete;
    }
  }

  Status on(const source_event::Resumed&) {
    if (record_.state() != kAborted) return failure(over(record_));
    if (!record_.tasks_resumed) record_.tasks_resumed = changed_ = true;
    return {};
  }

  Status on(const source_event::GiveUp& event) {
    if (record_.state() == kAborted) return {};
    if (is_decided(record_)) {
      return failure(EPERM, "the decision is made: the target owns the processes");
    }
    // If the target is ready, it has the only copy. So the source asks first (kAskTarget).
    if (node_was_restarted()) return {};
    return abort(event.why);
  }

  // A target that is lost for good counts as a target without a record: it needs no message.
  Status on(const source_event::TargetIsGone&) {
    if (record_.state() == kFinished) return {};
    const TargetView gone{.has_record = false, .incarnation = "", .error = "", .lost = {}};
    return on(source_event::TargetSays{gone});
  }

  Status on(const source_event::Look&) {
    if (is_over(record_.state())) return {};
    if (record_.state() == kCommitted) {
      if (node_was_restarted()) mark_dead();
      return {};
    }
    if (node_was_restarted()) {
      const bool nothing_sent = record_.state() == kPreparing;
      return nothing_sent ? abort("the node was restarted before the decision") : Status{};
    }
    if (facts_.coordinator_works) return {};
    return abort("ppmr migrate ended or hung before the decision");
  }

  void finish_if_done() {
    if (record_.state() != kCommitted || !record_.peer_notified) return;
    if (record_.all_trees(TreePhase::kComplete)) (void)move_to(kFinished);
  }

  void plan_actions() {
    switch (record_.state()) {
      case kFinished:
        return;
      case kAborted:
        if (!record_.tasks_resumed) actions_.push_back(SourceAction::kResumeTasks);
        if (!record_.peer_notified) actions_.push_back(SourceAction::kTellAborted);
        return;
      case kCommitted:
        return plan_hand_over();
      default:
        // The coordinator drives what it began. Only after a restart must another program ask the
        // target.
        if (node_was_restarted()) actions_.push_back(SourceAction::kAskTarget);
        return;
    }
  }

  void plan_hand_over() {
    const bool dead = record_.all_trees(TreePhase::kComplete);
    const bool runs_first = record_.plan.may_run_before_memory();
    if (!dead && !runs_first) actions_.push_back(SourceAction::kKillTasks);
    if (!record_.peer_notified) actions_.push_back(SourceAction::kTellRun);
    if (!dead && runs_first) {
      const bool waits = facts_.memory_needed && !needs_no_memory_;
      actions_.push_back(waits ? SourceAction::kAwaitMemory : SourceAction::kKillTasks);
    }
  }

  bool needs_no_memory_ = false;  // the target has all memory, or no copy that could use it
  std::vector<SourceAction> actions_;
};

}  // namespace

const char* to_string(SourceAction action) {
  switch (action) {
    case SourceAction::kAskTarget:
      return "ask the target";
    case SourceAction::kKillTasks:
      return "kill the tasks";
    case SourceAction::kTellRun:
      return "tell: run";
    case SourceAction::kTellAborted:
      return "tell: aborted";
    case SourceAction::kResumeTasks:
      return "resume the tasks";
    case SourceAction::kAwaitMemory:
      return "await the memory";
  }
  return "";
}

TargetView view_of(const OwnershipRecord& target) {
  TargetView view{true, target.state(), target.incarnation, target.first_error(), {}};
  for (const TreeRecord& tree : target.trees) view.lost.push_back(tree.lost);
  return view;
}

Result<SourceStep> source_step(const OwnershipRecord& record, const SourceFacts& facts,
                               const SourceEvent& event) {
  return Step(record, facts).take(event);
}

HookVerdict source_verdict(const OwnershipRecord& record, size_t tree) {
  if (record.state() == kAborted) return HookVerdict::kStop;
  // In a rehearsal, the target has all that it needs when the tree is sealed, so the tree goes on
  // before its restore. But an eager restore compares the sizes of files, so the tree must not
  // write yet.
  const bool is_sealed =
      tree < record.trees.size() && record.trees[tree].phase >= TreePhase::kSealed;
  if (record.plan.is_rehearsal && record.plan.restores_lazily() && is_sealed)
    return HookVerdict::kStop;
  if (!is_decided(record) || tree >= record.trees.size()) return HookVerdict::kHold;
  return record.trees[tree].phase == TreePhase::kComplete ? HookVerdict::kLetGo
                                                          : HookVerdict::kHold;
}

}  // namespace ppmr
