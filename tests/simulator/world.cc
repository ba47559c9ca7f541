// How a play goes: the coordinator, the hooks, the agent, the supervisors and the daemons that
// settle are coroutines. The scheduler resumes one of them at a time, chosen by the seed. Between
// two steps, a fault may strike. When no fault is left and both nodes are up, everything must come
// to an end by itself, and `judge()` compares the end with what is allowed.
#include "tests/simulator/world.h"

#include <algorithm>
#include <array>

namespace ppmr::simulator {
namespace {

using enum MigrationState;

constexpr uint64_t kHoldLimit = 600;  // --timeout, in units of virtual time
constexpr uint64_t kCallLimit = 60;   // one attempt of a request
constexpr uint64_t kVoteAge = 120;    // a vote that was asked for longer ago is asked again
constexpr uint64_t kPatience = 500;   // of the coordinator with an unreachable target
constexpr uint64_t kSettleInterval = 150;
constexpr uint64_t kCutTolerated = 150;  // a longer cut ends the session of the daemons
constexpr uint64_t kStepsMax = 60'000;
constexpr uint64_t kSource = 0, kTarget = 1;

struct Request {
  enum Kind { kPrepare, kLook, kVote, kRun, kAbort } kind;
  OwnershipRecord record;  // kPrepare
  std::string why;         // kAbort
};

struct Reply {
  bool arrived = false;
  bool refused = false;
  Error error;
  TargetView view;
  uint64_t asked_at = 0;
};

struct Version {
  OwnershipRecord record;
  bool durable = false;
};

struct Node {
  bool up = true;
  uint64_t up_at = 0;
  int boot = 1;
  bool daemon_up = true;
  uint64_t daemon_up_at = 0;
  int daemon = 1;
  uint64_t disk_full_until = 0;
  std::vector<Version> versions;

  std::string boot_id() const { return "boot-" + std::to_string(boot); }
  std::string incarnation() const { return boot_id() + "/daemon-" + std::to_string(daemon); }
};

enum class Copy { kNone, kHeld, kRuns };

struct Tree {
  // At the source.
  bool alive = true;
  bool traced = false;   // CRIU holds it
  bool stopped = false;  // SIGSTOP
  bool dumped = false;
  bool ran_since_dump = false;
  // At the target.
  Copy copy = Copy::kNone;
  bool ran_at_target = false;
  // On the way.
  bool images_sealed = false;
  bool images_failed = false;
  bool memory_here = false;
  bool memory_lost = false;  // the source cannot send the rest of it
  uint64_t memory_lost_at = 0;
  std::string excuse;        // the fault that lost the tree where that is documented
  bool ended_apart = false;  // with its node, before the migration began or after its end

  bool runs_at_source() const { return alive && !traced && !stopped; }
};

class World {
 public:
  World(const Scenario& scenario, const Rules& rules, bool with_history)
      : scenario_(scenario),
        rules_(rules),
        with_history_(with_history),
        random_(scenario.seed),
        trees_(scenario.trees) {}

  Verdict run();

 private:
  // --- time, chance, history ---
  uint64_t draw(uint64_t from, uint64_t to) { return from + random_() % (to - from + 1); }
  bool chance(uint64_t percent) { return random_() % 100 < percent; }
  void note(const std::string& text) {
    if (with_history_) verdict_.history.push_back(std::to_string(now_) + " " + text);
  }
  void violate(const std::string& text) {
    note("VIOLATION " + text);
    if (verdict_.violation.empty()) verdict_.violation = text;
  }

  // --- actors ---
  struct Pause {
    World& world;
    uint64_t time;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> here) const {
      world.current_->next = here;
      world.wake_[world.current_] = world.now_ + time;
    }
    void await_resume() const {}
  };
  Pause pause(uint64_t time = 0) { return {*this, time}; }

  Actor* spawn(std::string name, uint64_t node, int tree, bool is_daemon, Work<Nothing> work) {
    auto next = work.handle();
    actors_.push_back(std::make_unique<Actor>(Actor{.name = std::move(name),
                                                    .at_source = node == kSource,
                                                    .is_daemon = is_daemon,
                                                    .tree = tree,
                                                    .work = std::move(work),
                                                    .next = next}));
    Actor* actor = actors_.back().get();
    wake_[actor] = now_;
    return actor;
  }
  Actor* find(const std::string& name) const {
    for (const auto& actor : actors_) {
      if (actor->name == name) return actor.get();
    }
    return nullptr;
  }
  void end_actor(Actor* actor);
  bool kill_one(const std::string& name) {
    Actor* actor = find(name);
    if (actor == nullptr || actor == current_) return false;
    note("killed: " + name);
    end_actor(actor);
    return true;
  }
  void resume_one();
  void advance_world();
  void check_copies();

  // --- disks ---
  std::optional<OwnershipRecord> read(uint64_t node) {
    Node& at = nodes_[node];
    if (at.versions.empty()) return std::nullopt;
    if (rules_.reader_syncs) {
      for (Version& version : at.versions) version.durable = true;
    }
    OwnershipRecord record = at.versions.back().record;
    record.version = at.versions.size();
    return record;
  }
  const OwnershipRecord* latest(uint64_t node) const {
    const auto& versions = nodes_[node].versions;
    return versions.empty() ? nullptr : &versions.back().record;
  }
  bool is_full(uint64_t node) const { return nodes_[node].disk_full_until > now_; }
  // Returns 0, EEXIST or ENOSPC.
  Work<int> write(uint64_t node, const OwnershipRecord& record, size_t after) {
    return write_version(node, record, after);
  }
  Work<int> write_version(uint64_t node, OwnershipRecord record, size_t after);

  // --- the network ---
  struct Message {
    uint64_t at;
    bool to_target;
    std::shared_ptr<Request> request;
    std::shared_ptr<Reply> reply;  // where the answer goes; for an answer, what arrives
    Reply answer;
  };
  void send(Message message);
  // Repeats a request until it is answered or the patience ends. Like all functions that an actor
  // awaits, it takes its arguments by reference and copies them in a coroutine of its own: g++ 12
  // destroys temporaries of a co_await expression twice.
  Work<Reply> ask(Request::Kind kind, uint64_t patience) {
    return call(std::make_shared<Request>(Request{kind, {}, "aborted"}), patience);
  }
  Work<Reply> call(std::shared_ptr<Request> request, uint64_t patience);

  // --- the source ---
  SourceFacts source_facts(const OwnershipRecord& record, bool tasks_held) const;
  Work<Result<SourceStep>> take(const SourceEvent& event, bool tasks_held = false) {
    return take_step(event, tasks_held);
  }
  Work<Result<SourceStep>> take_step(SourceEvent event, bool tasks_held);
  Work<Nothing> drive_source();
  Work<std::optional<SourceEvent>> perform(SourceAction action);
  Work<Nothing> coordinator();
  Work<std::string> move();
  Work<Nothing> source_criu(size_t tree);
  Work<Nothing> settle_source();
  bool coordinator_works() const;
  bool memory_needed() const;

  // --- the target ---
  TargetFacts target_facts(const OwnershipRecord& record) const;
  Work<Result<TargetStep>> take_at_target(const TargetEvent& event) { return target_take(event); }
  Work<Result<TargetStep>> target_take(TargetEvent event);
  Work<Nothing> agent(std::shared_ptr<Request> request, std::shared_ptr<Reply> reply,
                      uint64_t asked_at);
  Work<Nothing> supervisor(size_t tree);
  Work<Nothing> target_criu(size_t tree);
  Work<Nothing> settle_target();
  void start_supervisors();
  bool supervised(const OwnershipRecord& record) const;

  // --- faults and the end ---
  void strike(Fault fault);
  void lose_memory(Tree& tree) {
    if (!tree.memory_lost) tree.memory_lost_at = now_;
    tree.memory_lost = true;
  }
  void lose_power(uint64_t node);
  void kill_daemon(uint64_t node);
  bool can_be_saved(size_t tree) const;
  bool is_quiet() const;
  void judge();

  const Scenario& scenario_;
  const Rules& rules_;
  const bool with_history_;
  std::mt19937_64 random_;
  uint64_t now_ = 0;
  uint64_t steps_ = 0;
  size_t next_fault_ = 0;
  std::array<Node, 2> nodes_;
  std::vector<Tree> trees_;
  std::list<Message> messages_;
  std::map<Actor*, uint64_t> wake_;
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor* current_ = nullptr;
  uint64_t link_cut_until_ = 0;
  uint64_t contact_at_ = 0;  // the coordinator was at work
  uint64_t contact_at_target_ = 0;
  bool interrupted_ = false;
  bool fail_next_restore_ = false;
  uint64_t memory_checked_at_ = 0;
  uint64_t confirmed_at_ = 0;
  uint64_t target_hurt_at_ = 0;
  uint64_t vote_age_ = 0;  // when the coordinator used it
  uint64_t committed_at_ = 0;
  std::string reported_;  // by the coordinator: its exit
  Verdict verdict_;
};

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
  // The order of pointers is not the same in every run.
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

// What goes on without a program: nodes start again, messages arrive, memory travels.
void World::advance_world() {
  for (const uint64_t number : {kSource, kTarget}) {
    Node& node = nodes_[number];
    if (!node.up && node.up_at <= now_) {
      node.up = node.daemon_up = true;
      note(number == kSource ? "source starts again" : "target starts again");
      number == kSource ? spawn("settle-source", kSource, -1, true, settle_source())
                        : spawn("settle-target", kTarget, -1, true, settle_target());
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
  facts.now_ns = static_cast<int64_t>(now_);
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

// Carries out an action. Returns its event; nullopt if it is impossible now.
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

// What every program of the source does with a record: looks, and carries out what there is to do.
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
  }
}

Work<Nothing> World::coordinator() {
  reported_ = co_await move();
  note("reports: " + reported_);
  co_return Nothing{};
}

// Returns what the coordinator tells its user.
Work<std::string> World::move() {
  contact_at_ = now_;
  OwnershipRecord record;
  record.id = std::string(32, 'a');
  record.role = MigrationRole::kSource;
  record.boot_id = nodes_[kSource].boot_id();
  record.plan = scenario_.plan;
  record.trees.resize(trees_.size());
  record.begin(static_cast<int64_t>(now_));
  if (co_await write(kSource, record, 0)) co_return "stayed";
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
    // Waits until every tree is sealed, and looks at the target.
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
        const bool may_end = scenario_.plan.original_goes_on && held;
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

TargetFacts World::target_facts(const OwnershipRecord& record) const {
  const Node& node = nodes_[kTarget];
  TargetFacts facts;
  facts.now_ns = static_cast<int64_t>(now_);
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
      record.begin(static_cast<int64_t>(now_));
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
  // A disk that is full is no answer: the source asks again.
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
      // The pager of a restored copy has its memory.
      if (tree.copy == Copy::kNone) tree.memory_here = false;
    }
  }
}

// Whether a correct protocol can still let this tree run somewhere, now or later.
bool World::can_be_saved(size_t number) const {
  const Tree& tree = trees_[number];
  const OwnershipRecord* source = latest(kSource);
  const OwnershipRecord* target = latest(kTarget);
  const bool committed =
      source != nullptr && (source->state() == kCommitted || source->state() == kFinished);
  if (!committed && tree.alive) return true;
  const bool memory = tree.memory_here || (tree.alive && !tree.memory_lost);
  const bool there = (tree.copy != Copy::kNone || tree.images_sealed) && memory;
  if (committed) return there;
  const bool frozen = source != nullptr && source->state() >= kFrozen;
  const bool voted = frozen && target != nullptr && target->state() == kReady &&
                     target->incarnation == nodes_[kTarget].incarnation() &&
                     target->first_error().empty();
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
      kill_one("supervisor-" + some_tree);
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
  }
  for (size_t i = 0; i < trees_.size(); ++i) {
    if (could_be_saved[i] && !can_be_saved(i)) trees_[i].excuse = to_string(fault);
  }
}

// Nothing is open on either node, and no program of the migration is left.
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
  if (!messages_.empty()) return false;
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
    if (here && !tree.runs_at_source()) violate(name + " stays stopped at the source");
    if (tree.copy == Copy::kHeld) violate(name + " stays held at the target");
    if (scenario_.plan.original_goes_on) {
      ending = there ? "copied" : "not copied";
    } else {
      if (here && there) violate(name + " exists twice");
      // Between a fresh vote and the decision, nobody can tell that the target has died.
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

Verdict World::run() {
  spawn("settle-source", kSource, -1, true, settle_source());
  spawn("settle-target", kTarget, -1, true, settle_target());
  spawn("coordinator", kSource, -1, false, coordinator());
  while (!is_quiet() && verdict_.violation.empty()) {
    while (next_fault_ < scenario_.faults.size() && scenario_.faults[next_fault_].first <= steps_) {
      strike(scenario_.faults[next_fault_++].second);
    }
    advance_world();
    resume_one();
    check_copies();
    // A play that is over before its last fault: the rest strikes a world at rest.
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

}  // namespace

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
                                                           "restore fails"};
  return kNames[static_cast<size_t>(fault)];
}

Scenario Scenario::random(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15ULL);
  Scenario scenario{.seed = seed, .faults = {}, .trees = 1 + random() % 3, .plan = {}};
  switch (random() % 6) {
    case 0:
    case 1:
      scenario.plan.may_run = MayRun::kDecided;
      break;
    case 2:
      scenario.plan = {.memory = MemoryPath::kImages, .original_goes_on = true};
      break;
    default:
      break;
  }
  const size_t faults = random() % 5;
  for (size_t i = 0; i < faults; ++i) {
    scenario.faults.emplace_back(random() % 260, static_cast<Fault>(random() % kFaultCount));
  }
  std::sort(scenario.faults.begin(), scenario.faults.end());
  return scenario;
}

Verdict play(const Scenario& scenario, const Rules& rules, bool with_history) {
  return World(scenario, rules, with_history).run();
}

}  // namespace ppmr::simulator
