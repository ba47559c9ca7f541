// The target's half of the protocol, see source_protocol.h. The agent, the supervisors, the hooks
// beside CRIU and the settler of interrupted migrations call the same function.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "migration/protocol/source_protocol.h"
#include "migration/records/ownership_record.h"

namespace ppmr {

struct TargetFacts {
  int64_t now_ns = 0;  // CLOCK_REALTIME, for the history of the record only
  Home home = Home::kThisBoot;
  // The boot and the daemon that hold the checkpoints. A vote counts only in the incarnation that
  // prepared.
  std::string incarnation;
  // Why this node cannot vote: a checkpoint or a restored tree is missing. Empty: nothing is
  // missing.
  std::string missing;
  bool supervised = true;    // each tree that is not complete has a supervisor
  bool tries_again = false;  // the caller asks for another attempt for trees that have failed
  bool overdue = false;      // the source has made no contact within --timeout
};

namespace target_event {
struct Ready {  // CRIU has restored the tree and holds it
  size_t tree = 0;
  std::vector<ProcessIdentity> tasks;
  std::vector<uint64_t> waiting_at;
  ProcessIdentity criu;
};
struct Failed {  // the tree cannot be restored
  size_t tree = 0;
  std::string error;
  bool for_good = false;  // no other attempt can succeed
};
struct Runs {
  size_t tree = 0;
  int64_t began_ns = 0;  // start of the restore
  int64_t since_ns = 0;  // when the tree began to run
};
struct Complete {  // all memory is in place; or the tree has ended because its memory is lost
  size_t tree = 0;
  std::string lost;
};
struct Vote {};  // the source wants the vote confirmed
struct Run {};   // the source's copy never runs again
struct Abort {   // the source has aborted
  std::string why;
};
struct SourceIsGone {     // for good, an operator says
  bool run_here = false;  // else the copy is discarded
};
struct Look {};  // nothing has happened: a program asks what to do
}  // namespace target_event

using TargetEvent =
    std::variant<target_event::Ready, target_event::Failed, target_event::Runs,
                 target_event::Complete, target_event::Vote, target_event::Run, target_event::Abort,
                 target_event::SourceIsGone, target_event::Look>;

enum class TargetAction {
  kStartSupervisors,   // for each tree that is not complete and has none
  kRemoveCheckpoints,  // of trees without a supervisor, which would remove them
};
const char* to_string(TargetAction action);

struct TargetStep {
  OwnershipRecord record;
  bool changed = false;
  std::vector<TargetAction> actions;
};

// Errors: ECANCELED: the migration is aborted; EPERM: the event does not fit the state; ECHILD: a
// tree has failed; ESTALE: the node or its daemon was restarted; EXDEV: the record belongs to
// another node.
Result<TargetStep> target_step(const OwnershipRecord& record, const TargetFacts& facts,
                               const TargetEvent& event);

// What CRIU's hook at the target does with its tree: kStop: the copy must never run.
HookVerdict target_verdict(const OwnershipRecord& record);

}  // namespace ppmr
