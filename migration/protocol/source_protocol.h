// The source's half of the protocol: which step a record takes, and what its node has to do then.
//
// Pure: no I/O, no clock, no thread. Every program of the source calls the same function: the
// coordinator (`ppmr migrate`), the hook beside each CRIU, and the settler of interrupted
// migrations. A driver reads the record, gathers the facts, calls the function, writes the record
// of the result with a compare-and-set, carries out the actions in their order, and then takes the
// steps for their events. If another program has written the record first, the driver repeats this
// with the newer record. `tests/simulator` drives the same functions.
//
// docs/migration.md has the steps as a table, which a test compares with this code.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "migration/records/ownership_record.h"

namespace ppmr {

// The node and the boot that have written the record.
enum class Home {
  kThisBoot,     // this node in this boot: the processes of the record may be alive
  kEarlierBoot,  // this node before it was restarted: none of the processes is alive
  kOtherNode,    // another node that shares the state directory: its records are refused
};

struct SourceFacts {
  int64_t now_ns = 0;  // CLOCK_REALTIME, for the history of the record only
  Home home = Home::kThisBoot;
  // `ppmr migrate` is alive and has made contact within --timeout.
  bool coordinator_works = true;
  // A moment ago, CRIU held every thread of all tasks.
  bool tasks_held = false;
  // Post-copy: the target still needs the frozen pages of the tasks.
  bool memory_needed = false;
};

// What the target says about its half.
struct TargetView {
  bool has_record = false;  // the other fields count only if it has one
  MigrationState state = MigrationState::kRestoring;
  std::string incarnation;
  std::string error;
  std::vector<std::string> lost;  // for each tree; empty: it is not lost
  bool operator==(const TargetView&) const = default;
};
TargetView view_of(const OwnershipRecord& target);

// The events: what has happened.
namespace source_event {
struct Prepared {  // the target has accepted the migration
  std::string peer;
  std::string incarnation;
  std::string node_id = {};          // of the target; see check_denial()
  std::string state_directory = {};  // where the target has its records
};
struct DumpBegins {
  size_t tree = 0;
  std::vector<ProcessIdentity> stopped_before;
};
struct Held {  // CRIU has dumped the tree and holds it; SIGSTOP is about to be sent
  size_t tree = 0;
  std::vector<ProcessIdentity> tasks;
  ProcessIdentity criu;
};
struct Stopped {  // SIGSTOP was sent, and then CRIU still held every thread
  size_t tree = 0;
};
struct Sealed {  // the target has verified the tree's images
  size_t tree = 0;
  int64_t freeze_began_ns = 0;
  std::vector<RoundRecord> rounds;
};
struct Confirmed {  // the target has confirmed its vote, a moment ago
  std::string incarnation;
};
struct TargetSays {
  TargetView target;
};
struct TasksDead {};  // no task of any tree will run here again
struct Resumed {};    // after an abort: the tasks that the migration had stopped go on
struct GiveUp {
  std::string why;
};
struct TargetIsGone {};  // for good, an operator says
struct Look {};          // nothing has happened: a program asks what to do
}  // namespace source_event

using SourceEvent =
    std::variant<source_event::Prepared, source_event::DumpBegins, source_event::Held,
                 source_event::Stopped, source_event::Sealed, source_event::Confirmed,
                 source_event::TargetSays, source_event::TasksDead, source_event::Resumed,
                 source_event::GiveUp, source_event::TargetIsGone, source_event::Look>;

// What the node has to do. Each action ends in an event; all can be repeated.
enum class SourceAction {
  kAskTarget,    // look at the target's record: TargetSays
  kKillTasks,    // SIGKILL to every task of every tree, by pidfd: TasksDead
  kTellRun,      // tell the target to let the trees run: TargetSays
  kTellAborted,  // tell the target that the migration is aborted: TargetSays
  kResumeTasks,  // continue the tasks that the migration had stopped: Resumed
  kAwaitMemory,  // wait until the target has all frozen pages, or no use for them: TargetSays
};
const char* to_string(SourceAction action);

struct SourceStep {
  OwnershipRecord record;
  bool changed = false;  // the caller writes `record`
  std::vector<SourceAction> actions;
};

// Errors: ECANCELED: the migration is over; EPERM: the event does not fit the state; ESTALE: the
// target that confirms is not the one that prepared (it was restarted); EXDEV: the record belongs
// to another node. The caller then writes nothing.
Result<SourceStep> source_step(const OwnershipRecord& record, const SourceFacts& facts,
                               const SourceEvent& event);

// What CRIU's hook at the source does with its tree.
enum class HookVerdict {
  kHold,   // not decided: the tree stays held
  kStop,   // aborted, or rehearsed: CRIU ends with an error and lets the tree continue
  kLetGo,  // committed, and the tasks are dead (or will be): CRIU may end
};
HookVerdict source_verdict(const OwnershipRecord& record, size_t tree);

}  // namespace ppmr
