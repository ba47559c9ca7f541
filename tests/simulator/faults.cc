// The faults that strike between two steps, and the judgement of the end of a play.
#include <nlohmann/json.hpp>

#include "tests/simulator/world_state.h"

namespace ppmr::simulator {

void World::lose_power(uint64_t number) {
  Node& node = nodes_[number];
  for (size_t i = actors_.size(); i-- > 0;) {
    if (i < actors_.size() && actors_[i]->at_source == (number == kSource)) {
      end_actor(actors_[i].get());
    }
  }
  const auto volatile_from = std::find_if(node.versions.begin(), node.versions.end(),
                                          [](const Version& version) { return !version.durable; });
  node.versions.erase(volatile_from, node.versions.end());
  node.up = node.daemon_up = false;
  node.up_at = now_ + draw(50, 1000);
  ++node.boot;
  node.daemon = 1;
  const OwnershipRecord* record = latest(number);
  for (size_t i = 0; i < trees_.size(); ++i) {
    Tree& tree = trees_[i];
    const bool over = number == kSource
                          ? tree.alive && (record == nullptr || record->state() == kAborted)
                          : record != nullptr && record->trees[i].phase == TreePhase::kComplete;
    tree.ended_apart = tree.ended_apart || over;
    if (number == kSource) {
      tree.alive = tree.traced = tree.stopped = false;
      if (!tree.images_sealed) tree.images_failed = true;
      if (!tree.memory_here) lose_memory(tree);
    } else {
      tree.copy = Copy::kNone;
      tree.images_sealed = tree.memory_here = false;
      tree.images_failed = true;
    }
  }
}

void World::kill_daemon(uint64_t number) {
  Node& node = nodes_[number];
  for (size_t i = actors_.size(); i-- > 0;) {
    if (i < actors_.size() && actors_[i]->is_daemon &&
        actors_[i]->at_source == (number == kSource)) {
      end_actor(actors_[i].get());
    }
  }
  node.daemon_up = false;
  node.daemon_up_at = now_ + draw(20, 400);
  ++node.daemon;
  for (Tree& tree : trees_) {
    if (!tree.images_sealed) tree.images_failed = true;
    if (!tree.memory_here) lose_memory(tree);
    if (number == kTarget) {
      tree.images_failed = true;
      tree.images_sealed = false;
      // The pager of a restored copy holds the copy's memory, which therefore survives the daemon.
      if (tree.copy == Copy::kNone) tree.memory_here = false;
    }
  }
}

// Restarts the daemon of a node. The records become what the first version of ppmr would have
// written.
void World::upgrade(uint64_t number) {
  Node& node = nodes_[number];
  if (!node.up) return;
  if (node.daemon_up) kill_daemon(number);
  for (Version& version : node.versions) {
    if (version.record.has_losses()) continue;  // the first version could not record losses
    nlohmann::json old = version.record;
    for (const char* field :
         {"format", "node_id", "incarnation", "confirmations", "tasks_resumed"}) {
      old.erase(field);
    }
    for (nlohmann::json& tree : old["trees"]) {
      tree.erase("lost");
      tree.erase("stopped_before");
    }
    auto upgraded = parse_record(old);
    if (!upgraded) {
      violate("a record of the first format is refused: " + upgraded.error().message);
      return;
    }
    version.record = std::move(*upgraded);
  }
}

// systemd starts a service again when its main process has ended, and at boot.
void World::watch_unit(bool at_boot) {
  Tree& tree = trees_[0];
  const bool ended = std::exchange(tree.was_alive, tree.alive) && !tree.alive;
  if (!nodes_[kSource].up || unit_held_ || unit_started_) return;
  if ((at_boot && unit_enabled_) || ended) {
    unit_started_ = true;
    note("systemd starts the service again at the source");
  }
}

// Returns whether a correct protocol can still let this tree run somewhere, now or later.
bool World::can_be_saved(size_t number) const {
  const Tree& tree = trees_[number];
  const OwnershipRecord* source = latest(kSource);
  const OwnershipRecord* target = latest(kTarget);
  const bool committed =
      source != nullptr && (source->state() == kCommitted || source->state() == kFinished);
  if (!committed && tree.alive) return true;
  if (scenario_.plan.is_rehearsal) return false;
  const bool memory = tree.memory_here || (tree.alive && !tree.memory_lost);
  const bool there = (tree.copy != Copy::kNone || tree.images_sealed) && memory;
  if (committed) return there;
  const bool frozen = source != nullptr && source->state() >= kFrozen;
  // The vote holds even if a restore has failed since then, because the target repeats the
  // restore.
  const bool voted = frozen && target != nullptr && target->state() == kReady &&
                     target->incarnation == nodes_[kTarget].incarnation();
  return there && voted && tree.images_sealed && !scenario_.plan.may_run_before_memory() &&
         std::all_of(trees_.begin(), trees_.end(),
                     [](const Tree& each) { return each.images_sealed && each.memory_here; });
}

void World::strike(Fault fault) {
  std::vector<bool> could_be_saved;
  for (size_t i = 0; i < trees_.size(); ++i) could_be_saved.push_back(can_be_saved(i));
  const auto some_tree = std::to_string(random_() % trees_.size());
  note(std::string("FAULT ") + to_string(fault));
  switch (fault) {
    case Fault::kKillCoordinator:
      kill_one("coordinator");
      break;
    case Fault::kStopCoordinator:
      if (Actor* actor = find("coordinator")) actor->stopped_until = now_ + draw(50, 2000);
      break;
    case Fault::kInterruptCoordinator:
      interrupted_ = true;
      break;
    case Fault::kKillSourceCriu:
      kill_one("source-criu-" + some_tree);
      break;
    case Fault::kKillTargetCriu:
      kill_one("target-criu-" + some_tree);
      break;
    case Fault::kKillSupervisor:
      // The supervisor of a rehearsal is process 1 of the copy's pid namespace.
      if (kill_one("supervisor-" + some_tree) && scenario_.plan.is_rehearsal) {
        kill_one("target-criu-" + some_tree);
      }
      break;
    case Fault::kKillSourceDaemon:
      if (nodes_[kSource].daemon_up) kill_daemon(kSource);
      break;
    case Fault::kKillTargetDaemon:
      if (nodes_[kTarget].daemon_up) kill_daemon(kTarget);
      target_hurt_at_ = now_;
      break;
    case Fault::kPowerLossAtSource:
      if (nodes_[kSource].up) lose_power(kSource);
      break;
    case Fault::kPowerLossAtTarget:
      if (nodes_[kTarget].up) lose_power(kTarget);
      target_hurt_at_ = now_;
      break;
    case Fault::kCutLink: {
      const uint64_t length = draw(5, 800);
      link_cut_until_ = std::max(link_cut_until_, now_ + length);
      if (length <= kCutTolerated) break;
      for (Tree& tree : trees_) {
        if (!tree.images_sealed) tree.images_failed = true;
        if (!tree.memory_here && committed_at_ == 0) lose_memory(tree);
      }
      break;
    }
    case Fault::kFillSourceDisk:
      nodes_[kSource].disk_full_until = now_ + draw(20, 1500);
      break;
    case Fault::kFillTargetDisk:
      nodes_[kTarget].disk_full_until = now_ + draw(20, 1500);
      break;
    case Fault::kFailRestore:
      fail_next_restore_ = true;
      break;
    case Fault::kStepClock: {
      const auto step = static_cast<int64_t>(draw(1, 100'000));
      nodes_[draw(0, 1)].clock_ahead += chance(50) ? step : -step;
      break;
    }
    case Fault::kUpgradeSource:
      upgrade(kSource);
      break;
    case Fault::kUpgradeTarget:
      upgrade(kTarget);
      if (nodes_[kTarget].up) target_hurt_at_ = now_;
      break;
  }
  for (size_t i = 0; i < trees_.size(); ++i) {
    if (could_be_saved[i] && !can_be_saved(i)) trees_[i].excuse = to_string(fault);
  }
}

// Returns whether nothing is open on either node, and no program of the migration is left.
bool World::is_quiet() const {
  if (next_fault_ < scenario_.faults.size() || !nodes_[kSource].up || !nodes_[kTarget].up ||
      !nodes_[kSource].daemon_up || !nodes_[kTarget].daemon_up) {
    return false;
  }
  for (const auto& actor : actors_) {
    if (!actor->name.starts_with("settle")) return false;
  }
  const OwnershipRecord* source = latest(kSource);
  const OwnershipRecord* target = latest(kTarget);
  if (!messages_.empty() || unit_held_) return false;
  return (source == nullptr || source->is_settled()) &&
         (target == nullptr || is_over(target->state()));
}

void World::judge() {
  const OwnershipRecord* source = latest(kSource);
  const bool aborted = source == nullptr || source->state() == kAborted;
  for (size_t i = 0; i < trees_.size(); ++i) {
    const Tree& tree = trees_[i];
    const std::string name = "tree " + std::to_string(i);
    const bool here = tree.alive;
    const bool there = tree.copy == Copy::kRuns;
    if (tree.ended_apart) {
      verdict_.ending = "ended with its node, outside of the migration";
      continue;
    }
    std::string ending = there ? "moved" : here ? "stayed" : "lost: " + tree.excuse;
    if (i == 0 && unit_started_ && (here || there)) violate("the service runs twice");
    if (here && !tree.runs_at_source()) violate(name + " stays stopped at the source");
    if (tree.copy == Copy::kHeld) violate(name + " stays held at the target");
    if (scenario_.plan.is_rehearsal) {
      const bool says_so = aborted && source != nullptr && source->error.empty();
      if (tree.ran_at_target) violate(name + " ran at the target in a rehearsal");
      if (!here && tree.excuse.empty()) violate(name + " ended in a rehearsal");
      if (says_so && !tree.was_restored) violate(name + " is said to be rehearsed");
      if (says_so && here) ending = "rehearsed";
    } else if (scenario_.plan.original_goes_on) {
      ending = there ? "copied" : "not copied";
    } else {
      if (here && there) violate(name + " exists twice");
      // The source cannot know that the target has died between a fresh vote and the decision.
      const bool in_the_window = target_hurt_at_ >= confirmed_at_ && confirmed_at_ > 0 &&
                                 committed_at_ > 0 && vote_age_ <= kVoteAge;
      if (!here && !there && tree.excuse.empty()) {
        if (in_the_window) {
          ending = "lost: the target died after its vote";
        } else if (tree.memory_lost && tree.memory_lost_at >= memory_checked_at_) {
          ending = "lost: the source's daemon died in post-copy";
        } else {
          violate(name + " is lost without a documented cause");
        }
      }
      const bool said_lost = source != nullptr && !source->trees[i].lost.empty();
      const OwnershipRecord* target = latest(kTarget);
      const bool target_said =
          target != nullptr && i < target->trees.size() && !target->trees[i].lost.empty();
      if (here && !aborted) violate(name + " stays, but the record says it moved");
      if (there && aborted) violate(name + " moved, but the record says it stays");
      if ((here || there) && said_lost) violate(name + " is said to be lost, but it runs");
      if (!here && !there && !said_lost && !target_said) {
        violate(name + " is lost, but no record says so");
      }
    }
    if (verdict_.ending.find(ending) == std::string::npos) {
      verdict_.ending += (verdict_.ending.empty() ? "" : "; ") + ending;
    }
  }
  const bool moved = verdict_.ending.find("moved") != std::string::npos;
  const bool stayed = verdict_.ending.find("stayed") != std::string::npos;
  if (moved && stayed) violate("some trees moved and some stayed");
  if (scenario_.plan.original_goes_on) return;
  if (reported_ == "moved" && stayed) violate("the coordinator said `moved`, but the trees stay");
  if (reported_ == "stayed" && moved) violate("the coordinator said `stayed`, but they moved");
}

}  // namespace ppmr::simulator
