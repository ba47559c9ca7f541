// The target's copy runs in one state only: `running`. The target enters it when the source has
// said that its own copy never runs again. A target that has not voted (`restoring`) may abort
// alone. A target that is `ready` may not: the source may have decided. One exception is safe:
// after a restart of this node, its copy is dead and cannot run, whatever the source decides. A
// rehearsal is never decided, so its target may abort alone at any time.
#include "migration/protocol/target_protocol.h"

#include <algorithm>

#include "migration/protocol/protocol_step.h"

namespace ppmr {
namespace {

using enum MigrationState;

constexpr const char* kEndedWithNode = "it ended when the target's node was restarted";

Error wrong_state(const OwnershipRecord& record) {
  return {record.state() == kAborted ? ECANCELED : EPERM,
          std::string("the migration is ") + to_string(record.state()) + " at the target" +
              (record.first_error().empty() ? "" : ": " + record.first_error())};
}

class Step : private ProtocolStep<TargetFacts> {
 public:
  using ProtocolStep::ProtocolStep;

  Result<TargetStep> take(const TargetEvent& event) {
    if (Status home = check_home(); !home) return failure(home.error());
    const Status taken = std::visit([this](const auto& what) { return on(what); }, event);
    if (!taken) return failure(taken.error());
    plan_actions();
    return TargetStep{std::move(record_), changed_, std::move(actions_)};
  }

 private:
  Status abort(const std::string& why) {
    if (record_.error.empty()) record_.error = why;
    return move_to(kAborted);
  }

  Status on(const target_event::Ready& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (is_over(record_.state()) || node_was_restarted()) return failure(wrong_state(record_));
    TreeRecord& now = **tree;
    now.tasks = event.tasks;
    now.waiting_at = event.waiting_at;
    now.criu = event.criu;
    if (now.phase < TreePhase::kReady) now.held_ns = facts_.now_ns;
    now.phase = std::max(now.phase, TreePhase::kReady);
    changed_ = true;
    const bool all = record_.state() == kRestoring && record_.all_trees(TreePhase::kReady);
    return all ? move_to(kReady) : Status{};
  }

  Status on(const target_event::Failed& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (is_over(record_.state())) return {};
    (*tree)->error = event.error;
    changed_ = true;
    if (may_abort_alone()) return abort(event.error);
    if (record_.state() != kRunning || !event.for_good) return {};
    return complete(**tree, event.error);
  }

  Status on(const target_event::Runs& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (record_.state() != kRunning && record_.state() != kFinished) {
      return failure(wrong_state(record_));
    }
    (*tree)->phase = std::max((*tree)->phase, TreePhase::kRunning);
    (*tree)->restore_began_ns = event.began_ns;
    (*tree)->running_ns = event.since_ns;
    changed_ = true;
    return {};
  }

  Status on(const target_event::Complete& event) {
    auto tree = tree_at(event.tree);
    if (!tree) return failure(tree.error());
    if (record_.state() != kRunning) return failure(wrong_state(record_));
    return complete(**tree, event.lost);
  }

  Status complete(TreeRecord& tree, const std::string& lost) {
    if (tree.phase == TreePhase::kComplete) return {};
    tree.phase = TreePhase::kComplete;
    tree.complete_ns = facts_.now_ns;
    tree.lost = lost;
    changed_ = true;
    return record_.all_trees(TreePhase::kComplete) ? move_to(kFinished) : Status{};
  }

  // The caller writes every confirmation to the record. So a confirmation also shows that the disk
  // can take the next state.
  Status on(const target_event::Vote&) {
    if (record_.state() != kReady) return failure(wrong_state(record_));
    if (node_was_restarted() || facts_.incarnation != record_.incarnation) {
      return failure(ESTALE,
                     "the target was restarted since it restored the processes: they are gone");
    }
    if (!record_.first_error().empty()) return failure(ECHILD, record_.first_error());
    if (!facts_.missing.empty()) return failure(ESTALE, facts_.missing);
    ++record_.confirmations;
    changed_ = true;
    return {};
  }

  Status on(const target_event::Run&) {
    if (record_.state() == kRunning || record_.state() == kFinished) return {};
    if (record_.state() != kReady) return failure(wrong_state(record_));
    if (Status runs = move_to(kRunning); !runs) return runs;
    return node_was_restarted() ? lose_the_rest() : Status{};
  }

  Status on(const target_event::Abort& event) {
    if (record_.state() == kAborted) return {};
    if (record_.state() == kRunning || record_.state() == kFinished) {
      return failure(wrong_state(record_));
    }
    return abort(event.why);
  }

  Status on(const target_event::SourceIsGone& event) {
    if (!event.run_here) return on(target_event::Abort{"discarded by an operator"});
    if (record_.state() != kReady) return failure(wrong_state(record_));
    if (node_was_restarted()) {
      return failure(ESTALE, "the copy ended when this node was restarted");
    }
    if (!record_.first_error().empty()) return failure(ECHILD, record_.first_error());
    return on(target_event::Run{});
  }

  Status on(const target_event::Look&) {
    switch (record_.state()) {
      case kRestoring:
        return abort_if_interrupted("not all processes were restored within --timeout");
      case kReady:
        if (record_.plan.is_rehearsal) {
          return abort_if_interrupted("the source did not end the rehearsal within --timeout");
        }
        return node_was_restarted() ? abort("the target's node was restarted") : Status{};
      case kRunning:
        return node_was_restarted() ? lose_the_rest() : Status{};
      default:
        return {};
    }
  }

  bool may_abort_alone() const {
    return record_.state() == kRestoring ||
           (record_.state() == kReady && record_.plan.is_rehearsal);
  }

  Status abort_if_interrupted(const char* overdue) {
    if (node_was_restarted()) return abort("the target's node was restarted");
    if (!facts_.supervised) return abort("the restore was interrupted at the target");
    return facts_.overdue ? abort(overdue) : Status{};
  }

  // A record takes one step at a time. So after a restart in `ready`, only a second Look records
  // the loss.
  Status lose_the_rest() {
    if (changed_) return {};
    for (TreeRecord& tree : record_.trees) {
      if (tree.phase == TreePhase::kComplete) continue;
      if (Status lost = complete(tree, kEndedWithNode); !lost) return lost;
    }
    return {};
  }

  void plan_actions() {
    if (node_was_restarted()) return;
    const bool has_failed = !record_.first_error().empty();
    if (record_.state() == kRunning && !facts_.supervised && (!has_failed || facts_.tries_again)) {
      actions_.push_back(TargetAction::kStartSupervisors);
    }
    if (record_.state() == kAborted && !facts_.supervised) {
      actions_.push_back(TargetAction::kRemoveCheckpoints);
    }
  }

  std::vector<TargetAction> actions_;
};

}  // namespace

const char* to_string(TargetAction action) {
  return action == TargetAction::kStartSupervisors ? "start the supervisors"
                                                   : "remove the checkpoints";
}

Result<TargetStep> target_step(const OwnershipRecord& record, const TargetFacts& facts,
                               const TargetEvent& event) {
  return Step(record, facts).take(event);
}

HookVerdict target_verdict(const OwnershipRecord& record) {
  switch (record.state()) {
    case kAborted:
      return HookVerdict::kStop;
    case kRunning:
    case kFinished:
      return HookVerdict::kLetGo;
    default:
      return HookVerdict::kHold;
  }
}

}  // namespace ppmr
