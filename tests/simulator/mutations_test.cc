// Proves that the simulator finds faults: each deliberate fault in the protocol leads to a
// violation.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/simulator/world.h"

namespace ppmr::simulator {
namespace {

using enum MigrationState;

constexpr uint64_t kHistoriesMax = 20'000;

template <typename Event, typename Events>
bool is(const Events& event) {
  return std::holds_alternative<Event>(event);
}

// Returns rules in which `distort` changes the input of each step of the source.
Rules source_sees(std::function<void(OwnershipRecord&, SourceFacts&, SourceEvent&)> distort) {
  Rules rules;
  rules.source_step = [distort](OwnershipRecord record, SourceFacts facts, SourceEvent event) {
    distort(record, facts, event);
    return source_step(record, facts, event);
  };
  return rules;
}

// Returns rules in which `distort` changes the result of each step of the source.
Rules source_gives(std::function<void(SourceStep&, const SourceEvent&)> distort) {
  Rules rules;
  rules.source_step = [distort](const OwnershipRecord& record, const SourceFacts& facts,
                                const SourceEvent& event) {
    auto step = source_step(record, facts, event);
    if (step) distort(*step, event);
    return step;
  };
  return rules;
}

Rules target_sees(std::function<void(OwnershipRecord&, TargetFacts&, TargetEvent&)> distort) {
  Rules rules;
  rules.target_step = [distort](OwnershipRecord record, TargetFacts facts, TargetEvent event) {
    distort(record, facts, event);
    return target_step(record, facts, event);
  };
  return rules;
}

Rules with(bool Rules::*rule) {
  Rules rules;
  rules.*rule = false;
  return rules;
}

Rules without_action(SourceAction action) {
  return source_gives(
      [action](SourceStep& step, const SourceEvent&) { std::erase(step.actions, action); });
}

struct Mutation {
  std::string name;
  Rules rules;
  std::vector<Fault> faults;  // strike in turn instead of random faults; empty: random ones
};

std::vector<Mutation> all_mutations() {
  std::vector<Mutation> all;
  const auto add = [&](std::string name, Rules rules, std::vector<Fault> faults = {}) {
    all.push_back({std::move(name), std::move(rules), std::move(faults)});
  };

  add("a restart of the source's node goes unnoticed",
      source_sees([](auto&, SourceFacts& facts, auto&) { facts.home = Home::kThisBoot; }));
  add("after a restart, the source hands over trees that were not frozen",
      source_sees([](OwnershipRecord& record, SourceFacts& facts, auto&) {
        if (facts.home != Home::kEarlierBoot || record.state() != kDumping) return;
        (void)record.move_to(kFrozen, 0);
      }));
  add("any incarnation of the target may confirm, and votes without its checks", [] {
    Rules rules = source_sees([](OwnershipRecord& record, auto&, SourceEvent& event) {
      if (auto* confirmed = std::get_if<source_event::Confirmed>(&event)) {
        confirmed->incarnation = record.incarnation;
      }
    });
    rules.target_step = [](OwnershipRecord record, TargetFacts facts, TargetEvent event) {
      if (is<target_event::Vote>(event)) {
        facts.home = Home::kThisBoot;
        facts.incarnation = record.incarnation;
        facts.missing.clear();
      }
      return target_step(record, facts, event);
    };
    return rules;
  }());
  add("a target that is ready lets its trees run", [] {
    Rules rules;
    rules.target_verdict = [](const OwnershipRecord& record) {
      return record.state() == kReady ? HookVerdict::kLetGo : target_verdict(record);
    };
    return rules;
  }());
  add("a target that is ready aborts when its source is silent", [] {
    Rules rules;
    rules.target_step = [](const OwnershipRecord& record, const TargetFacts& facts,
                           const TargetEvent& event) {
      const bool alone = is<target_event::Look>(event) && record.state() == kReady;
      if (!alone || !facts.overdue) return target_step(record, facts, event);
      return target_step(record, facts, TargetEvent(target_event::Abort{"overdue"}));
    };
    return rules;
  }());
  add("the source decides a rehearsal as a move",
      source_sees([](OwnershipRecord& record, SourceFacts& facts, auto&) {
        if (!record.plan.is_rehearsal) return;
        record.plan.is_rehearsal = false;
        facts.tasks_held = true;
      }));
  add("what was rehearsed runs when it is restored", [] {
    Rules rules;
    rules.target_verdict = [](const OwnershipRecord& record) {
      const bool runs = record.plan.is_rehearsal && record.state() == kReady;
      return runs ? HookVerdict::kLetGo : target_verdict(record);
    };
    return rules;
  }());
  add("a rehearsal ends well before the target has voted",
      source_gives([](SourceStep& step, const SourceEvent& event) {
        if (is<source_event::GiveUp>(event) && step.record.plan.is_rehearsal) {
          step.record.error.clear();
        }
      }));
  add("the source kills what it has rehearsed", [] {
    Rules rules;
    rules.source_verdict = [](const OwnershipRecord& record, size_t tree) {
      const auto verdict = source_verdict(record, tree);
      const bool goes_on = record.plan.is_rehearsal && verdict == HookVerdict::kStop;
      return goes_on ? HookVerdict::kLetGo : verdict;
    };
    return rules;
  }());
  add("tasks are not stopped", with(&Rules::holds_tasks));
  add("trees count as stopped as soon as CRIU holds them", [] {
    Rules rules = with(&Rules::holds_tasks);
    rules.checks_that_criu_holds = false;
    return rules;
  }());
  add("the source's hook lets its tree continue after the commit", [] {
    Rules rules;
    rules.source_verdict = [](const OwnershipRecord& record, size_t tree) {
      return record.state() == kCommitted ? HookVerdict::kStop : source_verdict(record, tree);
    };
    return rules;
  }());
  add("the source's hook lets CRIU kill its tree before the decision", [] {
    Rules rules;
    rules.source_verdict = [](const OwnershipRecord& record, size_t tree) {
      return record.state() == kSealed ? HookVerdict::kLetGo : source_verdict(record, tree);
    };
    return rules;
  }());
  add("records are not synced", [] {
    Rules rules = with(&Rules::syncs_records);
    rules.reader_syncs = false;
    return rules;
  }());
  add("the slower of two writers wins", with(&Rules::compares_versions));
  add("a vote is used however old it is", with(&Rules::drops_old_answers),
      {Fault::kStopCoordinator, Fault::kPowerLossAtTarget});
  add("no program aborts for a dead coordinator",
      source_sees([](auto&, SourceFacts& facts, auto&) { facts.coordinator_works = true; }));
  add("the source reports no abort to the target", without_action(SourceAction::kTellAborted));
  add("the source does not let the target run its copy", without_action(SourceAction::kTellRun));
  add("what was stopped stays stopped after an abort", without_action(SourceAction::kResumeTasks));
  add("the tasks are not killed", without_action(SourceAction::kKillTasks));
  add("the source does not ask after a restart", without_action(SourceAction::kAskTarget));
  add("frozen pages are given up before the target has them",
      source_sees([](auto&, SourceFacts& facts, auto&) { facts.memory_needed = false; }));
  add("the source does not note what was lost",
      source_gives([](SourceStep& step, const SourceEvent&) {
        for (TreeRecord& tree : step.record.trees) tree.lost.clear();
      }));
  add("the source counts the target as notified when its own tasks are dead",
      source_gives([](SourceStep& step, const SourceEvent& event) {
        if (is<source_event::TasksDead>(event)) step.record.peer_notified = step.changed = true;
      }));
  add("the source ignores that the target lost its copy after the decision",
      source_sees([](OwnershipRecord& record, auto&, SourceEvent& event) {
        auto* says = std::get_if<source_event::TargetSays>(&event);
        if (says == nullptr || record.state() != kCommitted) return;
        if (says->target.state == kAborted) event = source_event::Look{};
      }));
  add("systemd may start again what moves", with(&Rules::holds_unit));
  add("a unit that has left is started at boot", [] {
    Rules rules;
    rules.unit_step = [](const OwnershipRecord& record, bool same_boot) {
      const auto step = source_unit_step(record, same_boot);
      return step == SourceUnitStep::kRetire ? SourceUnitStep::kRestoreAndStart : step;
    };
    return rules;
  }());
  add("a unit stays held after an abort", [] {
    Rules rules;
    rules.unit_step = [](const OwnershipRecord& record, bool same_boot) {
      const auto step = source_unit_step(record, same_boot);
      return record.state() == kAborted ? SourceUnitStep::kHold : step;
    };
    return rules;
  }());
  add("a node settles what another one has in the directory that they share",
      source_sees([](auto&, SourceFacts& facts, auto&) {
        if (facts.home == Home::kOtherNode) facts.home = Home::kEarlierBoot;
      }));
  add("the target does not restore again",
      target_sees([](auto&, TargetFacts& facts, auto&) { facts.supervised = true; }));
  return all;
}

class Mutations : public testing::TestWithParam<Mutation> {};

TEST_P(Mutations, IsFound) {
  for (uint64_t seed = 1; seed <= kHistoriesMax; ++seed) {
    Scenario scenario = Scenario::random(seed);
    const std::vector<Fault>& faults = GetParam().faults;
    if (!faults.empty()) scenario.faults.clear();
    for (size_t i = 0; i < faults.size(); ++i) {
      scenario.faults.emplace_back(60 + seed % 120 + i, faults[i]);
    }
    const Verdict verdict = play(scenario, GetParam().rules);
    if (verdict.violation.empty()) continue;
    EXPECT_EQ(play(scenario).violation, "") << "seed " << seed << ": not a fault of the mutation";
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << ": " << verdict.violation << "\n";
    return;
  }
  FAIL() << "no history of " << kHistoriesMax << " shows that " << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(Each, Mutations, testing::ValuesIn(all_mutations()),
                         [](const testing::TestParamInfo<Mutation>& info) {
                           std::string name;
                           for (const char c : info.param.name) {
                             name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace ppmr::simulator
