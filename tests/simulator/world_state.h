// The world of a play: what the actors, the faults and the judgement share. Tests use world.h.
#pragma once

#include <algorithm>
#include <array>

#include "tests/simulator/world.h"

namespace ppmr::simulator {

using enum MigrationState;

inline constexpr uint64_t kHoldLimit = 600;  // --timeout, in units of virtual time
inline constexpr uint64_t kCallLimit = 60;   // limit for one attempt of a request
inline constexpr uint64_t kVoteAge = 120;    // the coordinator asks again for a vote that is older
inline constexpr uint64_t kPatience = 500;   // limit of the coordinator for a silent target
inline constexpr uint64_t kSettleInterval = 150;
inline constexpr uint64_t kCutTolerated = 150;  // a longer cut ends the session of the daemons
inline constexpr uint64_t kStepsMax = 60'000;
inline constexpr uint64_t kSource = 0, kTarget = 1;

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
  int64_t clock_ahead = 0;
  std::vector<Version> versions;

  std::string boot_id() const { return "boot-" + std::to_string(boot); }
  std::string incarnation() const { return boot_id() + "/daemon-" + std::to_string(daemon); }
};

enum class Copy { kNone, kHeld, kRuns };

struct Tree {
  // What runs at the source.
  bool alive = true;
  bool traced = false;   // CRIU holds it
  bool stopped = false;  // SIGSTOP
  bool dumped = false;
  bool ran_since_dump = false;
  // What runs at the target.
  Copy copy = Copy::kNone;
  bool ran_at_target = false;
  bool was_restored = false;
  // What travels between the nodes.
  bool images_sealed = false;
  bool images_failed = false;
  bool memory_here = false;
  bool memory_lost = false;  // the source cannot send the rest of it
  uint64_t memory_lost_at = 0;
  std::string excuse;        // the fault after which no protocol could save the tree
  bool ended_apart = false;  // ended with its node, before the migration began or after its end
  bool was_alive = true;     // when systemd last looked

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
  int64_t time_of_day(uint64_t node) const {
    return std::max<int64_t>(static_cast<int64_t>(now_) + nodes_[node].clock_ahead, 1);
  }

  // --- systemd at the source, and what holds it back ---
  void watch_unit(bool at_boot);
  void settle_unit();
  void upgrade(uint64_t node);
  Work<Nothing> look_at_foreign_record(uint64_t node);

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
  uint64_t contact_at_ = 0;  // when the coordinator last worked
  uint64_t contact_at_target_ = 0;
  bool interrupted_ = false;
  bool fail_next_restore_ = false;
  uint64_t memory_checked_at_ = 0;
  uint64_t confirmed_at_ = 0;
  uint64_t target_hurt_at_ = 0;
  uint64_t vote_age_ = 0;  // the age of the vote when the coordinator used it
  uint64_t committed_at_ = 0;
  std::string reported_;       // the result that the coordinator reported
  bool unit_held_ = false;     // the drop-in that holds the service exists
  bool unit_enabled_ = true;   // a boot starts the service
  bool unit_started_ = false;  // systemd has started the service anew
  Verdict verdict_;
};

}  // namespace ppmr::simulator
