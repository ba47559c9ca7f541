// How a play goes: the coordinator, the hooks, the agent, the supervisors and the daemons that
// settle are coroutines. The scheduler resumes one of them at a time, chosen by the seed. Between
// two steps, a fault may happen. When no fault is left and both nodes are up, all coroutines must
// end by themselves. Then `judge()` compares the state of both nodes with what is allowed.
#include "tests/simulator/world.h"

#include "tests/simulator/world_state.h"

namespace ppmr::simulator {

void World::end_actor(Actor* actor) {
  const auto at = std::find_if(actors_.begin(), actors_.end(),
                               [&](const auto& each) { return each.get() == actor; });
  const std::unique_ptr<Actor> ended = std::move(*at);
  actors_.erase(at);
  wake_.erase(actor);
  if (ended->tree < 0) return;
  Tree& tree = trees_[static_cast<size_t>(ended->tree)];
  // The kernel detaches what a dead CRIU has traced. At the target, an unfinished copy dies with
  // it.
  if (ended->name.starts_with("source-criu")) tree.traced = false;
  if (ended->name.starts_with("target-criu") && tree.copy == Copy::kHeld) tree.copy = Copy::kNone;
}

void World::resume_one() {
  std::vector<Actor*> ready;
  for (const auto& [actor, at] : wake_) {
    if (at <= now_ && actor->stopped_until <= now_) ready.push_back(actor);
  }
  // Sorts by name, because the order of pointers differs from run to run.
  std::sort(ready.begin(), ready.end(),
            [](const Actor* left, const Actor* right) { return left->name < right->name; });
  if (ready.empty()) {
    uint64_t next = ~0ULL;
    for (const auto& [actor, at] : wake_) {
      next = std::min(next, std::max(at, actor->stopped_until));
    }
    for (const Message& message : messages_) next = std::min(next, message.at);
    for (const Node& node : nodes_) {
      if (!node.up) next = std::min(next, node.up_at);
      if (node.up && !node.daemon_up) next = std::min(next, node.daemon_up_at);
    }
    now_ = next == ~0ULL ? now_ + 1 : std::max(now_ + 1, next);
    return;
  }
  ++now_;
  ++steps_;
  current_ = ready[random_() % ready.size()];
  current_->next.resume();
  Actor* actor = std::exchange(current_, nullptr);
  if (actor->work.is_done()) {
    note("ended: " + actor->name);
    end_actor(actor);
  }
}

// Advances what needs no program: nodes start again, messages arrive, memory travels.
void World::advance_world() {
  for (const uint64_t number : {kSource, kTarget}) {
    Node& node = nodes_[number];
    if (!node.up && node.up_at <= now_) {
      node.up = node.daemon_up = true;
      note(number == kSource ? "source starts again" : "target starts again");
      number == kSource ? spawn("settle-source", kSource, -1, true, settle_source())
                        : spawn("settle-target", kTarget, -1, true, settle_target());
      if (number == kSource && scenario_.has_unit) watch_unit(true);
    }
    if (node.up && !node.daemon_up && node.daemon_up_at <= now_) {
      node.daemon_up = true;
      number == kSource ? spawn("settle-source", kSource, -1, true, settle_source())
                        : spawn("settle-target", kTarget, -1, true, settle_target());
    }
  }
  const bool linked = link_cut_until_ <= now_;
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (message->at > now_) {
      ++message;
      continue;
    }
    const Message arrived = std::move(*message);
    message = messages_.erase(message);
    if (!linked) continue;
    if (!arrived.to_target) {
      if (!arrived.reply->arrived) *arrived.reply = arrived.answer;
    } else if (nodes_[kTarget].up && nodes_[kTarget].daemon_up) {
      spawn("agent-" + std::to_string(steps_) + "-" + std::to_string(actors_.size()), kTarget, -1,
            true, agent(arrived.request, arrived.reply, arrived.reply->asked_at));
    }
  }
  const bool flows = linked && nodes_[kSource].up && nodes_[kTarget].up &&
                     nodes_[kSource].daemon_up && nodes_[kTarget].daemon_up;
  if (!flows) return;
  for (Tree& tree : trees_) {
    if (!tree.dumped || !tree.alive || tree.images_failed || tree.memory_here) continue;
    if (tree.runs_at_source() && !scenario_.plan.original_goes_on) continue;
    // In post-copy the images are sealed first; the memory follows slowly.
    const bool follows = scenario_.plan.may_run_before_memory() && tree.images_sealed;
    if (tree.memory_lost || !chance(follows ? 1 : 10)) continue;
    if (scenario_.plan.may_run_before_memory() && !tree.images_sealed) {
      tree.images_sealed = true;
    } else {
      tree.memory_here = tree.images_sealed = true;
    }
  }
}

void World::check_copies() {
  for (size_t i = 0; i < trees_.size(); ++i) {
    Tree& tree = trees_[i];
    if (tree.dumped && tree.runs_at_source()) tree.ran_since_dump = true;
    if (scenario_.plan.original_goes_on) continue;
    const std::string name = "tree " + std::to_string(i);
    if (tree.copy == Copy::kRuns && tree.runs_at_source()) violate(name + " runs twice");
    if (tree.copy == Copy::kRuns && tree.ran_since_dump) {
      violate(name + " runs at the target, but it ran at the source after its dump");
    }
  }
}

Work<int> World::write_version(uint64_t node, OwnershipRecord record, size_t after) {
  co_await pause();
  Node& at = nodes_[node];
  if (rules_.compares_versions && at.versions.size() != after) co_return EEXIST;
  if (is_full(node)) co_return ENOSPC;
  note(std::string(node == kSource ? "source: " : "target: ") + to_string(record.state()) + " (" +
       current_->name + ")");
  if (node == kSource && record.state() == kCommitted && committed_at_ == 0) committed_at_ = now_;
  at.versions.push_back({std::move(record), false});
  const size_t mine = at.versions.size();
  co_await pause(draw(0, 3));
  if (rules_.syncs_records) {
    for (size_t i = 0; i < mine; ++i) at.versions[i].durable = true;
  }
  co_return 0;
}

void World::send(Message message) {
  const bool lost = chance(4);
  const bool twice = chance(4);
  const auto delay = [&] { return chance(5) ? draw(20, 400) : draw(1, 8); };
  message.at = now_ + delay();
  if (twice) {
    messages_.push_back(message);
    messages_.back().at = now_ + delay();
  }
  if (!lost) messages_.push_back(std::move(message));
}

Work<Reply> World::call(std::shared_ptr<Request> request, uint64_t patience) {
  const uint64_t until = now_ + patience;
  do {
    const auto reply = std::make_shared<Reply>();
    reply->asked_at = now_;
    send({0, true, request, reply, {}});
    const uint64_t attempt_until = std::min(until, now_ + kCallLimit);
    while (!reply->arrived && now_ < attempt_until) co_await pause(4);
    if (reply->arrived) co_return *reply;
  } while (now_ < until);
  co_return Reply{};
}

Verdict World::run() {
  spawn("settle-source", kSource, -1, true, settle_source());
  spawn("settle-target", kTarget, -1, true, settle_target());
  spawn("coordinator", kSource, -1, false, coordinator());
  // If the migration ends before the last fault, the remaining faults strike a world at rest.
  while (!is_quiet() && verdict_.violation.empty()) {
    while (next_fault_ < scenario_.faults.size() && scenario_.faults[next_fault_].first <= steps_) {
      strike(scenario_.faults[next_fault_++].second);
    }
    advance_world();
    resume_one();
    if (scenario_.has_unit) watch_unit(false);
    check_copies();
    if (steps_ > kStepsMax) {
      violate(std::string("not settled: the source is ") +
              (latest(kSource) ? to_string(latest(kSource)->state()) : "without a record") +
              ", the target is " +
              (latest(kTarget) ? to_string(latest(kTarget)->state()) : "without a record"));
    }
  }
  if (verdict_.violation.empty()) judge();
  verdict_.steps = steps_;
  return std::move(verdict_);
}

const char* to_string(Fault fault) {
  constexpr std::array<const char*, kFaultCount> kNames = {"coordinator killed",
                                                           "coordinator stopped",
                                                           "coordinator interrupted",
                                                           "source's CRIU killed",
                                                           "target's CRIU killed",
                                                           "supervisor killed",
                                                           "source's daemon killed",
                                                           "target's daemon killed",
                                                           "power loss at the source",
                                                           "power loss at the target",
                                                           "link cut",
                                                           "source's disk full",
                                                           "target's disk full",
                                                           "restore fails",
                                                           "clock steps",
                                                           "source upgraded",
                                                           "target upgraded"};
  return kNames[static_cast<size_t>(fault)];
}

Scenario Scenario::random(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15ULL);
  Scenario scenario{.seed = seed, .faults = {}, .trees = 1 + random() % 3, .plan = {}};
  switch (random() % 8) {
    case 0:
    case 1:
      scenario.plan.may_run = MayRun::kDecided;
      break;
    case 2:
      scenario.plan = {.memory = MemoryPath::kImages, .original_goes_on = true};
      break;
    case 3:
    case 4:
      scenario.plan.is_rehearsal = true;
      break;
    default:
      break;
  }
  const size_t faults = random() % 5;
  for (size_t i = 0; i < faults; ++i) {
    scenario.faults.emplace_back(random() % 260, static_cast<Fault>(random() % kFaultCount));
  }
  std::sort(scenario.faults.begin(), scenario.faults.end());
  scenario.has_unit = random() % 4 == 0 && !scenario.plan.original_goes_on;
  scenario.shares_state = random() % 4 == 0;
  return scenario;
}

Verdict play(const Scenario& scenario, const Rules& rules, bool with_history) {
  return World(scenario, rules, with_history).run();
}

}  // namespace ppmr::simulator
