// Thousands of histories of a protected tree, its partner and the link between them: power losses,
// cut links, restarts of the partner, fences, operators who are mistaken. The decisions are those
// of the product; the actors are a model of migration/target/epoch_requests and takeover.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <vector>

#include "migration/epochs/epoch_on_disk.h"
#include "migration/epochs/epoch_state.h"
#include "migration/protocol/target_protocol.h"

namespace ppmr {
namespace {

using enum MigrationState;

// The rules under test. Some tests replace a rule with a faulty one, and expect a violation.
struct Rules {
  std::function<SourceMay(std::optional<MigrationState>)> judge_source = ppmr::judge_source;
  std::function<Status(const EpochState&, std::optional<MigrationState>)> check_takeover =
      [](const EpochState& state, std::optional<MigrationState> takeover) {
        return ppmr::check_takeover(state, takeover);
      };
  bool checks_that_takeover_stands = true;  // before the decision
  bool remembers_takeovers = true;          // after a restart of the partner
  bool fences = true;
};

class World {
 public:
  World(uint64_t seed, const Rules& rules) : rules_(rules), random_(seed) {
    state_.name = "db";
    state_.run = std::string(32, 'a');
    state_.tree = {"node", "boot", 17, 1, "db"};
  }

  // Returns what went wrong; empty: nothing.
  std::string play() {
    for (int step = 0; step < 60; ++step) {
      act();
      if (const std::string wrong = judge(); !wrong.empty()) return story_ + wrong;
    }
    // The link comes back, and the source asks.
    link_ = true;
    source_asks();
    return copies() > 1 ? story_ + "two run although both nodes have met" : "";
  }

  const std::string& story() const { return story_; }
  bool was_taken_over() const { return was_taken_over_; }
  // Returns whether the partner took over with an epoch that had returned from the disk.
  bool was_taken_over_from_disk() const { return was_taken_over_ && has_returned_; }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  void tell(const std::string& what) { story_ += what + "\n"; }
  int copies() const { return (source_runs_ ? 1 : 0) + (partner_runs_ ? 1 : 0); }

  void act() {
    switch (random_() % 11) {
      case 10:
        return write_to_disk();
      case 0:
      case 1:
      case 2:
        return source_asks();
      case 3:
        link_ = !link_;
        return tell(link_ ? "link up" : "link down");
      case 4:
        if (!chance(20) || !source_runs_) return;
        source_runs_ = source_is_up_ = false;
        return tell("power loss at the source");
      case 5:
        if (!chance(15)) return;
        return partner_restarts();
      case 6:
        return begin();
      case 7:
        return restored();
      default:
        return decide();
    }
  }

  OwnershipRecord* takeover() {
    const auto found = records_.find(state_.takeover);
    return found != records_.end() ? &found->second : nullptr;
  }
  std::optional<MigrationState> takeover_state() {
    if (state_.takeover.empty()) return std::nullopt;
    const OwnershipRecord* const record = takeover();
    return record != nullptr ? record->state() : kFinished;
  }
  Status take(OwnershipRecord& record, const TargetEvent& event) {
    auto step = target_step(record, {}, event);
    if (!step) return failure(step.error());
    record = std::move(step->record);
    return {};
  }

  // Models the requests epoch-contact and epoch-seal, which the partner answers under the lock.
  void source_asks() {
    if (!source_runs_ || !link_) return;
    tell("the source asks");
    if (!exists_) {
      if (is_in_records() && rules_.remembers_takeovers) return end_source();
      exists_ = true;
      state_.takeover.clear();
      state_.newest = {};
    }
    switch (rules_.judge_source(takeover_state())) {
      case SourceMay::kNotRun:
        return end_source();
      case SourceMay::kGoOnAfterAbort:
        (void)take(*takeover(), target_event::Abort{"alive"});
        break;
      case SourceMay::kGoOn:
        break;
    }
    state_.takeover.clear();
    ++state_.newest.number;
  }
  bool is_in_records() const {
    bool is_taken_over = false;
    for (const auto& [id, record] : records_) {
      is_taken_over |= rules_.judge_source(record.state()) == SourceMay::kNotRun;
    }
    return is_taken_over;
  }
  void end_source() {
    tell("the source ends its copy");
    source_runs_ = false;
  }

  void begin() {
    if (!exists_) return;
    if (!rules_.check_takeover(state_, takeover_state())) return;
    if (const auto now = takeover_state(); now && *now != kAborted) return;  // goes on with it
    tell("a takeover begins");
    OwnershipRecord record;
    record.id = std::string(31, '0') + static_cast<char>('a' + records_.size() % 26);
    record.role = MigrationRole::kTarget;
    record.begin(0);
    record.trees.emplace_back();
    state_.takeover = record.id;
    begun_ = record.id;
    records_[record.id] = std::move(record);
  }

  void restored() {
    const auto found = records_.find(begun_);
    if (found == records_.end() || found->second.state() != kRestoring) return;
    if (take(found->second, target_event::Ready{.tree = 0})) tell("the tree is restored");
  }

  // Models the fence, or an operator who may be mistaken, and then the decision under the lock.
  void decide() {
    const auto found = records_.find(begun_);
    if (found == records_.end() || found->second.state() != kReady || !exists_) return;
    const bool is_mistaken = source_runs_;
    if (is_mistaken && rules_.fences && !chance(30)) return;  // the fence fails
    if (chance(30)) source_asks();                            // meanwhile
    if (rules_.checks_that_takeover_stands && state_.takeover != begun_) return;
    if (!take(found->second, target_event::SourceIsGone{.run_here = true})) return;
    tell(source_runs_ ? "decided, by a mistaken operator" : "decided");
    partner_runs_ = was_taken_over_ = true;
    met_since_ = false;
  }

  void write_to_disk() {
    if (!exists_ || !is_to_write(state_, takeover_state(), on_disk_)) return;
    tell("an epoch is on the disk");
    on_disk_.run = state_.run;
    on_disk_.number = state_.newest.number;
  }

  // The partner loses its memory: the epochs, and the process if it runs here. It keeps its disk:
  // the records, and the epochs that it has written there.
  void partner_restarts() {
    tell("the partner restarts");
    exists_ = false;
    partner_runs_ = false;
    state_.takeover.clear();
    state_.newest = {};
    begun_.clear();
    if (on_disk_.number == 0) return;
    EpochState written = state_;
    written.newest.number = on_disk_.number;
    const Return how = judge_return(written, std::nullopt, is_in_records());
    if (how == Return::kRemove) on_disk_ = {};
    if (how != Return::kToMemory) return;
    tell("its epoch returns from the disk");
    state_ = written;
    exists_ = has_returned_ = true;
  }

  std::string judge() {
    if (copies() < 2) return "";
    // Both may run only while the source cannot know.
    return link_ && asked_since_decision() ? "two run" : "";
  }
  bool asked_since_decision() {
    if (met_since_) return true;
    source_asks();
    met_since_ = true;
    return copies() > 1;
  }

  const Rules& rules_;
  std::mt19937_64 random_;
  EpochState state_;
  bool exists_ = false;  // whether the partner has the state
  EpochOnDisk on_disk_;
  bool has_returned_ = false;
  std::map<std::string, OwnershipRecord> records_;
  std::string begun_;  // the newest takeover
  bool source_runs_ = true;
  bool source_is_up_ = true;
  bool partner_runs_ = false;
  bool link_ = true;
  bool met_since_ = false;
  bool was_taken_over_ = false;
  std::string story_;
};

constexpr uint64_t kHistories = 10'000;

// Returns the first violation in the histories; empty: none.
std::string first_violation(const Rules& rules, uint64_t histories = kHistories) {
  for (uint64_t seed = 1; seed <= histories; ++seed) {
    const std::string wrong = World(seed, rules).play();
    if (!wrong.empty()) return "seed " + std::to_string(seed) + "\n" + wrong;
  }
  return "";
}

TEST(EpochHistories, NodesThatHaveMetNeverBothRunTheTree) {
  EXPECT_EQ(first_violation({}), "");
  uint64_t taken_over = 0;
  uint64_t from_disk = 0;
  const Rules rules;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    World world(seed, rules);
    (void)world.play();
    taken_over += world.was_taken_over() ? 1 : 0;
    from_disk += world.was_taken_over_from_disk() ? 1 : 0;
  }
  EXPECT_GT(taken_over, 200u) << "the histories must show takeovers";
  EXPECT_GT(from_disk, 20u) << "the histories must show takeovers of epochs from the disk";
}

TEST(EpochHistories, SourceThatAlwaysGoesOnRunsTheTreeTwice) {
  Rules rules;
  rules.judge_source = [](std::optional<MigrationState>) { return SourceMay::kGoOn; };
  EXPECT_NE(first_violation(rules), "");
}

TEST(EpochHistories, TakeoverThatIsNotAbortedRunsTheTreeTwice) {
  Rules rules;
  rules.judge_source = [](std::optional<MigrationState> takeover) {
    const SourceMay may = judge_source(takeover);
    return may == SourceMay::kGoOnAfterAbort ? SourceMay::kGoOn : may;
  };
  rules.checks_that_takeover_stands = false;
  EXPECT_NE(first_violation(rules), "");
}

TEST(EpochHistories, PartnerThatForgetsItsTakeoverRunsTheTreeTwice) {
  Rules rules;
  rules.remembers_takeovers = false;
  rules.judge_source = [](std::optional<MigrationState> takeover) {
    return takeover == kRunning ? SourceMay::kGoOn : judge_source(takeover);
  };
  EXPECT_NE(first_violation(rules), "");
}

// ---- Two partners -------------------------------------------------------------------------------

// A tree with two partners. At each partner, a watch takes over without a person, with a fence that
// is always right. A person at the second partner makes no false statement about the first one: it
// is off, or it has no epoch.
class TwoPartners {
 public:
  using Precedence = std::function<Status(const EpochState&, bool, const std::string&)>;
  TwoPartners(uint64_t seed, Precedence may) : may_(std::move(may)), random_(seed) {
    second_.state.first_partner = "first";
  }

  // Returns what went wrong; empty: nothing.
  std::string play() {
    for (int step = 0; step < 60; ++step) {
      act();
      if (first_.runs && second_.runs) return story_ + "both partners run it";
    }
    return "";
  }
  bool was_taken_over_by_second() const { return second_.runs; }

 private:
  struct Partner {
    EpochState state;
    bool is_on = true;
    bool runs = false;
  };

  void tell(const std::string& what) { story_ += what + "\n"; }
  static bool has_epoch(const Partner& partner) {
    return partner.is_on && partner.state.newest.number > 0;
  }

  void act() {
    switch (random_() % 8) {
      case 0:
      case 1:
        return send_to(first_, "first");
      case 2:
        return send_to(second_, "second");
      case 3:
        if (random_() % 4 == 0 && source_runs_) source_runs_ = false, tell("the source is lost");
        return;
      case 4:
        return switch_first();
      case 5:
        return take_over(first_, true, "", "the watch at the first");
      case 6:
        return take_over(second_, true, "", "the watch at the second");
      default:
        return ask_person();
    }
  }

  void send_to(Partner& partner, const std::string& name) {
    if (!source_runs_ || !partner.is_on) return;
    ++partner.state.newest.number;
    tell("an epoch to the " + name);
  }

  // Switches the first partner off or on. Its epochs are only in memory, and a process that runs
  // there ends.
  void switch_first() {
    first_.is_on = !first_.is_on;
    first_.state.newest = {};
    first_.runs = false;
    tell(first_.is_on ? "the first boots" : "the first is off");
  }

  void ask_person() {
    if (source_runs_) return;
    // In haste, a person may leave the option out.
    const bool is_true = !has_epoch(first_) && !first_.runs;
    take_over(second_, false, is_true ? "first" : "", "a person at the second");
  }

  void take_over(Partner& partner, bool is_alone, const std::string& instead_of,
                 const std::string& who) {
    if (source_runs_ || !has_epoch(partner) || partner.runs) return;  // the fence is right
    if (!may_(partner.state, is_alone, instead_of)) return;
    if (!check_takeover(partner.state, std::nullopt)) return;
    partner.runs = true;
    tell(who + " takes over");
  }

  const Precedence may_;
  std::mt19937_64 random_;
  Partner first_;
  Partner second_;
  bool source_runs_ = true;
  std::string story_;
};

// Returns the first violation; empty: none.
std::string first_violation_of_two(const TwoPartners::Precedence& may) {
  for (uint64_t seed = 1; seed <= kHistories; ++seed) {
    const std::string wrong = TwoPartners(seed, may).play();
    if (!wrong.empty()) return "seed " + std::to_string(seed) + "\n" + wrong;
  }
  return "";
}

TEST(TwoPartnersHistories, OnlyOneRunsTheTree) {
  EXPECT_EQ(first_violation_of_two(check_precedence), "");
  uint64_t by_second = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    TwoPartners partners(seed, check_precedence);
    (void)partners.play();
    by_second += partners.was_taken_over_by_second() ? 1 : 0;
  }
  EXPECT_GT(by_second, 50u) << "the histories must show takeovers by the second partner";
}

TEST(TwoPartnersHistories, WatchesAtBothRunTheTreeTwice) {
  const auto both = [](const EpochState& state, bool is_alone, const std::string& instead_of) {
    return is_alone ? Status{} : check_precedence(state, is_alone, instead_of);
  };
  EXPECT_NE(first_violation_of_two(both), "");
}

TEST(TwoPartnersHistories, PersonWhoNeedNotVouchRunsTheTreeTwice) {
  const auto anyone = [](const EpochState& state, bool is_alone, const std::string&) {
    return is_alone ? check_precedence(state, true, "") : Status{};
  };
  EXPECT_NE(first_violation_of_two(anyone), "");
}

}  // namespace
}  // namespace ppmr
