// A migration with faults between two nodes, with their disks and the network between them. One
// seed decides everything.
//
// The protocol of the product (migration/protocol) decides. A model acts: it has the copies of the
// trees, CRIU, disks and messages. A disk keeps only synced versions. Messages get lost, repeated,
// delayed and reordered. One step of the world is one step of one program.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "migration/protocol/source_protocol.h"
#include "migration/protocol/target_protocol.h"
#include "migration/relay/unit_step.h"
#include "tests/simulator/actor.h"

namespace ppmr::simulator {

// The protocol under test. A test of the simulator replaces a rule with a faulty one.
struct Rules {
  std::function<Result<SourceStep>(const OwnershipRecord&, const SourceFacts&, const SourceEvent&)>
      source_step = ppmr::source_step;
  std::function<Result<TargetStep>(const OwnershipRecord&, const TargetFacts&, const TargetEvent&)>
      target_step = ppmr::target_step;
  std::function<HookVerdict(const OwnershipRecord&, size_t)> source_verdict = ppmr::source_verdict;
  std::function<HookVerdict(const OwnershipRecord&)> target_verdict = ppmr::target_verdict;
  std::function<SourceUnitStep(const OwnershipRecord&, bool)> unit_step = ppmr::source_unit_step;
  // The coordinator's own rules.
  bool holds_tasks = true;  // the hook sends SIGSTOP
  bool checks_that_criu_holds = true;
  bool drops_old_answers = true;  // asks again for a vote that has become too old
  bool syncs_records = true;      // fsync before a step counts
  bool reader_syncs = true;       // a reader makes durable what it relies on
  bool compares_versions = true;  // a write fails if another program wrote first
  bool holds_unit = true;         // keeps systemd from restarting a service that moves
};

enum class Fault {
  kKillCoordinator,
  kStopCoordinator,
  kInterruptCoordinator,  // Ctrl-C
  kKillSourceCriu,        // with its relay and hook
  kKillTargetCriu,
  kKillSupervisor,
  kKillSourceDaemon,
  kKillTargetDaemon,
  kPowerLossAtSource,
  kPowerLossAtTarget,
  kCutLink,
  kFillSourceDisk,
  kFillTargetDisk,
  kFailRestore,
  kStepClock,      // of one node, forward or back
  kUpgradeSource,  // the daemons start again, and find records of the first format
  kUpgradeTarget,
};
inline constexpr int kFaultCount = 17;
const char* to_string(Fault fault);

struct Scenario {
  uint64_t seed = 0;
  std::vector<std::pair<uint64_t, Fault>> faults;  // each with its step of the world
  size_t trees = 1;
  MovePlan plan;
  bool has_unit = false;      // the first tree is a service that systemd starts again
  bool shares_state = false;  // both nodes have their records in one directory
  static Scenario random(uint64_t seed);
};

struct Verdict {
  std::string violation;  // empty: none
  // "moved", "stayed", "rehearsed", "lost: CAUSE" ...; different endings of several trees are
  // joined
  std::string ending;
  uint64_t steps = 0;
  std::vector<std::string> history;  // if asked for
};

// Plays a scenario to its end. The same seed and rules give the same history.
Verdict play(const Scenario& scenario, const Rules& rules = {}, bool with_history = false);

}  // namespace ppmr::simulator
