// The programs of the source: the coordinator, CRIU with its hooks, and the settler.
#include <nlohmann/json.hpp>

#include "tests/simulator/world_state.h"

namespace ppmr::simulator {

bool World::coordinator_works() const {
  return find("coordinator") != nullptr && now_ - contact_at_ <= kHoldLimit;
}

bool World::memory_needed() const {
  return scenario_.plan.may_run_before_memory() &&
         std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) {
           return !tree.memory_here && !tree.memory_lost && tree.alive;
         });
}

SourceFacts World::source_facts(const OwnershipRecord& record, bool tasks_held) const {
  SourceFacts facts;
  facts.now_ns = time_of_day(kSource);
  facts.home = record.boot_id == nodes_[kSource].boot_id() ? Home::kThisBoot : Home::kEarlierBoot;
  facts.coordinator_works = coordinator_works();
  facts.tasks_held = tasks_held;
  facts.memory_needed = memory_needed();
  return facts;
}

Work<Result<SourceStep>> World::take_step(SourceEvent event, bool tasks_held) {
  for (;;) {
    auto record = read(kSource);
    if (!record) co_return failure(ENOENT, "no record");
    const size_t version = record->version;
    co_await pause();
    auto step = rules_.source_step(*record, source_facts(*record, tasks_held), event);
    if (!step || !step->changed) co_return step;
    const int written = co_await write(kSource, step->record, version);
    if (written == 0) co_return step;
    if (written != EEXIST) co_return failure(written, "write the record");
  }
}

// Executes an action. Returns the event that it leads to; nullopt if the action is impossible now.
Work<std::optional<SourceEvent>> World::perform(SourceAction action) {
  note("acts: " + std::string(to_string(action)) + " (" + current_->name + ")");
  std::optional<Request::Kind> request;
  switch (action) {
    case SourceAction::kAskTarget:
      request = Request::kLook;
      break;
    case SourceAction::kTellRun:
      request = Request::kRun;
      break;
    case SourceAction::kTellAborted:
      request = Request::kAbort;
      break;
    case SourceAction::kKillTasks:
      for (size_t i = 0; i < trees_.size(); ++i) {
        if (!scenario_.plan.original_goes_on) trees_[i].alive = false;
        co_await pause();
      }
      co_return source_event::TasksDead{};
    case SourceAction::kResumeTasks:
      // Like the product, waits until CRIU has ended with its hook, which may be about to send
      // SIGSTOP.
      for (size_t i = 0; i < trees_.size(); ++i) {
        const std::string criu = "source-criu-" + std::to_string(i);
        const uint64_t until = now_ + kCallLimit;
        while (find(criu) != nullptr && find(criu) != current_ && now_ < until) co_await pause(5);
        if (find(criu) != nullptr && find(criu) != current_) co_return std::nullopt;
      }
      for (Tree& tree : trees_) {
        tree.stopped = false;
        co_await pause();
      }
      co_return source_event::Resumed{};
    case SourceAction::kAwaitMemory:
      co_await pause(20);
      request = Request::kLook;
      break;
  }
  const Reply reply = co_await ask(*request, kCallLimit);
  if (!reply.arrived) co_return std::nullopt;
  co_return source_event::TargetSays{reply.view};
}

// Does what every program of the source does with a record: takes a step, and executes its actions
// until none is left.
Work<Nothing> World::drive_source() {
  const SourceEvent look = source_event::Look{};
  auto step = co_await take(look);
  for (int round = 0; step && !step->actions.empty() && round < 40; ++round) {
    const std::vector<SourceAction> actions = step->actions;
    std::vector<SourceEvent> events;
    for (const SourceAction action : actions) {
      const auto event = co_await perform(action);
      if (!event) break;
      events.push_back(*event);
    }
    if (events.empty()) co_return Nothing{};
    for (size_t i = 0; i < events.size(); ++i) step = co_await take(events[i]);
  }
  co_return Nothing{};
}

Work<Nothing> World::settle_source() {
  for (;;) {
    co_await pause(draw(1, kSettleInterval));
    const auto record = read(kSource);
    if (record && !record->is_settled()) co_await drive_source();
    settle_unit();
    if (scenario_.shares_state) co_await look_at_foreign_record(kTarget);
  }
}

// A daemon finds the record of the other node in the directory that both share. It must do nothing
// with this record.
Work<Nothing> World::look_at_foreign_record(uint64_t node) {
  const auto record = read(node);
  if (!record) co_return Nothing{};
  bool does_something = false;
  if (node == kTarget) {
    TargetFacts facts;
    facts.home = Home::kOtherNode;
    facts.supervised = false;
    const auto step = rules_.target_step(*record, facts, target_event::Look{});
    does_something = step && (step->changed || !step->actions.empty());
  } else {
    SourceFacts facts;
    facts.home = Home::kOtherNode;
    facts.coordinator_works = false;
    const auto step = rules_.source_step(*record, facts, source_event::Look{});
    does_something = step && (step->changed || !step->actions.empty());
  }
  if (does_something) violate("a node settles the record of another one");
  co_return Nothing{};
}

// Does with the drop-in what the coordinator and the settler do (unit_fate.cc).
void World::settle_unit() {
  const OwnershipRecord* record = latest(kSource);
  if (!unit_held_ || record == nullptr || !record->is_settled()) return;
  const bool same_boot = record->boot_id == nodes_[kSource].boot_id();
  const SourceUnitStep step = rules_.unit_step(*record, same_boot);
  if (step == SourceUnitStep::kHold) return;
  unit_held_ = false;
  if (step == SourceUnitStep::kRetire) unit_enabled_ = false;
  if (step == SourceUnitStep::kRestoreAndStart) unit_started_ = true;
  note("the unit is " + std::string(unit_enabled_ ? "as before" : "disabled"));
}

Work<Nothing> World::coordinator() {
  reported_ = co_await move();
  note("reports: " + reported_);
  co_return Nothing{};
}

// Returns the result that the coordinator reports to its user.
Work<std::string> World::move() {
  contact_at_ = now_;
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  record.role = MigrationRole::kSource;
  record.boot_id = nodes_[kSource].boot_id();
  record.plan = scenario_.plan;
  record.trees.resize(trees_.size());
  for (size_t i = 0; i < trees_.size(); ++i) {
    record.trees[i].checkpoint = "tree-" + std::to_string(i);
  }
  record.endpoint = nlohmann::json::object();
  record.unit.enabled = scenario_.has_unit;
  record.begin(time_of_day(kSource));
  if (co_await write(kSource, record, 0)) co_return "stayed";
  unit_held_ = scenario_.has_unit && rules_.holds_unit;
  std::string why = "the target does not answer";
  {
    const auto prepare = std::make_shared<Request>(Request{Request::kPrepare, record, ""});
    const Reply reply = co_await call(prepare, kPatience);
    Result<SourceStep> begun = failure(EHOSTUNREACH, why);
    if (reply.arrived && reply.view.state != kAborted) {
      const SourceEvent prepared = source_event::Prepared{"target", reply.view.incarnation};
      begun = co_await take(prepared);
    }
    bool going = begun.has_value();
    if (!going) why = begun.error().message;
    for (size_t i = 0; going && i < trees_.size(); ++i) {
      const SourceEvent dump_begins = source_event::DumpBegins{i, {}};
      going = (co_await take(dump_begins)).has_value();
      if (!going) break;
      trees_[i].traced = true;
      spawn("source-criu-" + std::to_string(i), kSource, static_cast<int>(i), false,
            source_criu(i));
    }
    // Waits until every tree is sealed. Meanwhile sometimes asks the target for its state.
    std::vector<bool> noted(trees_.size());
    bool sealed = false;
    while (going && !sealed) {
      co_await pause(10);
      contact_at_ = now_;
      if (interrupted_) going = false, why = "interrupted";
      sealed = true;
      for (size_t i = 0; going && i < trees_.size(); ++i) {
        const Tree& tree = trees_[i];
        const bool arrived =
            tree.images_sealed && (tree.memory_here || scenario_.plan.may_run_before_memory());
        if (tree.images_failed) going = false, why = "the seal failed";
        const bool held = latest(kSource)->trees[i].phase >= TreePhase::kHeld;
        const bool goes_on = scenario_.plan.is_rehearsal && noted[i];
        const bool may_end = (scenario_.plan.original_goes_on && held) || goes_on;
        if (!may_end && find("source-criu-" + std::to_string(i)) == nullptr) {
          going = false, why = "the dump failed";
        }
        if (going && arrived && !noted[i]) {
          const SourceEvent sealed = source_event::Sealed{i, 0, {}};
          const auto step = co_await take(sealed);
          // EAGAIN: the hook has not yet written that it has stopped the tree.
          noted[i] = step.has_value();
          if (!step && step.error().errno_value != EAGAIN) going = false, why = "seal";
        }
        sealed = sealed && noted[i];
      }
      const auto now = read(kSource);
      if (now && is_over(now->state())) going = false, why = "aborted by a hook";
      if (!going || sealed || !chance(20)) continue;
      const Reply target = co_await ask(Request::kLook, kPatience);
      if (!target.arrived) going = false, why = "the target does not answer";
      if (target.arrived) {
        const SourceEvent says = source_event::TargetSays{target.view};
        const auto step = co_await take(says);
        going = going && step && !is_over(step->record.state());
      }
    }
    bool ready = false;
    const uint64_t ready_until = now_ + kHoldLimit;
    while (going && !ready) {
      const Reply target = co_await ask(Request::kLook, kPatience);
      contact_at_ = now_;
      if (interrupted_ || now_ > ready_until) going = false, why = "no vote";
      if (!target.arrived) going = false, why = "the target does not answer";
      if (target.arrived) {
        const SourceEvent says = source_event::TargetSays{target.view};
        const auto step = co_await take(says);
        going = going && step && step->record.state() == kSealed;
        ready = target.view.has_record && target.view.state == kReady;
      }
    }
    while (going) {
      bool held = true;
      for (const Tree& tree : trees_) {
        if (scenario_.plan.may_run_before_memory() && tree.memory_lost) {
          going = false, why = "the memory cannot be sent";
        }
      }
      memory_checked_at_ = now_;
      if (!going) break;
      const Reply vote = co_await ask(Request::kVote, kPatience);
      contact_at_ = now_;
      if (!vote.arrived || vote.refused) {
        going = false, why = "the target does not confirm its vote";
        break;
      }
      co_await pause();
      vote_age_ = now_ - vote.asked_at;
      if (rules_.drops_old_answers && vote_age_ > kVoteAge) continue;
      if (!scenario_.plan.original_goes_on && rules_.checks_that_criu_holds) {
        for (const Tree& tree : trees_) held = held && tree.traced;
      }
      const SourceEvent confirmed = source_event::Confirmed{vote.view.incarnation};
      const auto step = co_await take(confirmed, held);
      going = step && step->record.state() == kCommitted;
      break;
    }
    if (!going) {
      const SourceEvent give_up = source_event::GiveUp{why};
      const auto given_up = co_await take(give_up);
      const auto now = read(kSource);
      if (!given_up && !(now && now->state() == kCommitted)) co_return "open";
    }
  }
  for (;;) {
    contact_at_ = now_;
    co_await drive_source();
    const auto now = read(kSource);
    if (now && now->state() == kAborted) co_return now->tasks_resumed ? "stayed" : "open";
    if (now && now->peer_notified) break;
    if (now_ - contact_at_ > kHoldLimit) co_return "open";
    co_await pause(10);
  }
  for (;;) {
    const Reply target = co_await ask(Request::kLook, kHoldLimit);
    contact_at_ = now_;
    if (!target.arrived) co_return "open";
    const SourceEvent says = source_event::TargetSays{target.view};
    co_await take(says);
    const auto now = read(kSource);
    if (now && now->has_losses()) co_return "lost";
    if (target.view.has_record && target.view.state == kFinished) co_return "moved";
    co_await pause(10);
  }
}

// CRIU at the source with its relay and hook.
Work<Nothing> World::source_criu(size_t number) {
  Tree& tree = trees_[number];
  co_await pause(draw(1, 10));
  tree.dumped = true;
  const SourceEvent holds = source_event::Held{number, {}, {}};
  const auto held = co_await take(holds);
  if (!held) {
    tree.stopped = false;
    co_return Nothing{};
  }
  if (scenario_.plan.original_goes_on) co_return Nothing{};
  if (rules_.holds_tasks) tree.stopped = true;
  co_await pause();
  const SourceEvent stopped = source_event::Stopped{number};
  while (!(co_await take(stopped)) && read(kSource)->state() == kDumping) co_await pause(10);
  for (;;) {
    const auto record = read(kSource);
    switch (rules_.source_verdict(*record, number)) {
      case HookVerdict::kStop:
        tree.stopped = false;
        co_return Nothing{};
      case HookVerdict::kLetGo:
        tree.alive = false;  // CRIU kills what it has dumped
        co_return Nothing{};
      case HookVerdict::kHold:
        if (!coordinator_works()) co_await drive_source();
        co_await pause(10);
    }
  }
}

}  // namespace ppmr::simulator
