// The programs of the target: the migration agent, the supervisors, CRIU with its hooks, and the
// settler.
#include "tests/simulator/world_state.h"

namespace ppmr::simulator {

TargetFacts World::target_facts(const OwnershipRecord& record) const {
  const Node& node = nodes_[kTarget];
  TargetFacts facts;
  facts.now_ns = time_of_day(kTarget);
  facts.home = record.boot_id == node.boot_id() ? Home::kThisBoot : Home::kEarlierBoot;
  facts.incarnation = node.incarnation();
  facts.supervised = supervised(record);
  facts.tries_again = current_->name == "settle-target";
  facts.overdue = now_ - contact_at_target_ > kHoldLimit;
  for (const Tree& tree : trees_) {
    if (!tree.images_sealed) facts.missing = "the checkpoint is gone";
  }
  return facts;
}

bool World::supervised(const OwnershipRecord& record) const {
  for (size_t i = 0; i < record.trees.size(); ++i) {
    if (record.trees[i].phase == TreePhase::kComplete) continue;
    if (find("supervisor-" + std::to_string(i)) == nullptr) return false;
  }
  return true;
}

Work<Result<TargetStep>> World::target_take(TargetEvent event) {
  for (;;) {
    auto record = read(kTarget);
    if (!record) co_return failure(ENOENT, "no record");
    const size_t version = record->version;
    co_await pause();
    auto step = rules_.target_step(*record, target_facts(*record), event);
    if (!step || !step->changed) co_return step;
    const int written = co_await write(kTarget, step->record, version);
    if (written == 0) co_return step;
    if (written != EEXIST) co_return failure(written, "write the record");
  }
}

void World::start_supervisors() {
  for (size_t i = 0; i < trees_.size(); ++i) {
    const std::string name = "supervisor-" + std::to_string(i);
    if (find(name) == nullptr) {
      spawn(name, kTarget, static_cast<int>(i), false, supervisor(i));
    }
  }
}

Work<Nothing> World::agent(std::shared_ptr<Request> request, std::shared_ptr<Reply> reply,
                           uint64_t asked_at) {
  Reply answer;
  answer.arrived = true;
  answer.asked_at = asked_at;
  Result<TargetStep> step = failure(ENOENT, "no record");
  switch (request->kind) {
    case Request::kPrepare: {
      OwnershipRecord record = request->record;
      record.role = MigrationRole::kTarget;
      record.boot_id = nodes_[kTarget].boot_id();
      record.incarnation = nodes_[kTarget].incarnation();
      record.begin(time_of_day(kTarget));
      contact_at_target_ = now_;
      const int written = co_await write(kTarget, record, 0);
      if (written == 0) start_supervisors();
      if (written == ENOSPC) {
        answer.refused = true;
        answer.view = {.has_record = true, .state = kAborted, .error = "disk full"};
        send({0, false, request, reply, answer});
        co_return Nothing{};
      }
      break;
    }
    case Request::kLook:
      contact_at_target_ = now_;
      break;
    case Request::kVote: {
      const TargetEvent vote = target_event::Vote{};
      step = co_await take_at_target(vote);
      if (step) confirmed_at_ = now_;
      break;
    }
    case Request::kRun: {
      const TargetEvent run_it = target_event::Run{};
      step = co_await take_at_target(run_it);
      break;
    }
    case Request::kAbort: {
      const TargetEvent abort_it = target_event::Abort{request->why};
      step = co_await take_at_target(abort_it);
      break;
    }
  }
  const bool decides = request->kind != Request::kPrepare && request->kind != Request::kLook;
  answer.refused = decides && !step;
  // If the disk is full, the agent does not answer, and the source asks again.
  if (answer.refused && step.error().errno_value == ENOSPC) co_return Nothing{};
  if (const auto record = read(kTarget)) {
    answer.view = view_of(*record);
    if (!decides || record->state() == kRunning) {
      const TargetEvent look = target_event::Look{};
      const auto looked = co_await take_at_target(look);
      if (looked) {
        answer.view = view_of(looked->record);
        for (const TargetAction action : looked->actions) {
          if (action == TargetAction::kStartSupervisors) start_supervisors();
        }
      }
    }
  }
  send({0, false, request, reply, answer});
  co_return Nothing{};
}

Work<Nothing> World::settle_target() {
  for (;;) {
    co_await pause(draw(1, kSettleInterval));
    if (scenario_.shares_state) co_await look_at_foreign_record(kSource);
    if (!latest(kTarget)) continue;
    const TargetEvent look = target_event::Look{};
    const auto step = co_await take_at_target(look);
    if (!step) continue;
    for (const TargetAction action : step->actions) {
      if (action == TargetAction::kStartSupervisors) start_supervisors();
    }
  }
}

// CRIU at the target with its relay and hook.
Work<Nothing> World::target_criu(size_t number) {
  Tree& tree = trees_[number];
  co_await pause(draw(1, 10));
  if (std::exchange(fail_next_restore_, false) || !tree.images_sealed) co_return Nothing{};
  while (!tree.memory_here && !scenario_.plan.may_run_before_memory()) {
    const auto record = read(kTarget);
    if (is_over(record->state()) || tree.images_failed) co_return Nothing{};
    co_await pause(5);
  }
  tree.copy = Copy::kHeld;
  tree.was_restored = true;
  const TargetEvent ready = target_event::Ready{number, {}, {}, {}};
  if (!(co_await take_at_target(ready))) {
    tree.copy = Copy::kNone;
    co_return Nothing{};
  }
  for (;;) {
    const auto record = read(kTarget);
    switch (rules_.target_verdict(*record)) {
      case HookVerdict::kStop:
        tree.copy = Copy::kNone;
        co_return Nothing{};
      case HookVerdict::kLetGo:
        tree.copy = Copy::kRuns;
        tree.ran_at_target = true;
        note("tree " + std::to_string(number) + " runs at the target");
        co_return Nothing{};
      case HookVerdict::kHold:
        const TargetEvent look = target_event::Look{};
        co_await take_at_target(look);
        co_await pause(10);
    }
  }
}

Work<Nothing> World::supervisor(size_t number) {
  Tree& tree = trees_[number];
  const std::string criu = "target-criu-" + std::to_string(number);
  auto record = read(kTarget);
  if (record->trees[number].phase == TreePhase::kComplete) co_return Nothing{};
  // An earlier supervisor may have left a CRIU that still holds the tree.
  while (find(criu) != nullptr) co_await pause(10);
  for (int attempt = 1; tree.copy != Copy::kRuns; ++attempt) {
    while (!tree.images_sealed) {
      record = read(kTarget);
      if (record->state() == kAborted) co_return Nothing{};
      const bool overdue = now_ - contact_at_target_ > kHoldLimit;
      if (tree.images_failed || overdue) {
        const TargetEvent failed = target_event::Failed{number, "its checkpoint is lost", true};
        co_await take_at_target(failed);
        co_return Nothing{};
      }
      co_await pause(10);
    }
    co_await pause();
    spawn(criu, kTarget, static_cast<int>(number), false, target_criu(number));
    while (find(criu) != nullptr) co_await pause(10);
    if (tree.copy == Copy::kRuns) break;
    record = read(kTarget);
    if (record->state() == kAborted) co_return Nothing{};
    const bool promised = record->state() != kRestoring && !is_over(record->state());
    if (!promised || attempt == 3) {
      const TargetEvent failed = target_event::Failed{number, "CRIU cannot restore it", false};
      co_await take_at_target(failed);
      co_return Nothing{};
    }
  }
  const TargetEvent runs = target_event::Runs{number, 1, static_cast<int64_t>(now_)};
  while (!(co_await take_at_target(runs))) co_await pause(20);
  std::string lost;
  while (!tree.memory_here && scenario_.plan.may_run_before_memory() && lost.empty()) {
    if (tree.memory_lost || !tree.alive) lost = "its memory did not arrive";
    co_await pause(10);
  }
  if (!lost.empty()) tree.copy = Copy::kNone;
  const TargetEvent complete = target_event::Complete{number, lost};
  while (!(co_await take_at_target(complete))) co_await pause(20);
  co_return Nothing{};
}

}  // namespace ppmr::simulator
