// How a migration moves its trees. plan_move() computes the plan from what the user asked for and
// from what both nodes can do; the record of each node holds it, and everything else reads it.
//
//   memory   may run    live     original   with
//   apart    arrived    any      ends       no option; --stop-and-copy: not live
//   apart    decided    any      ends       --post-copy
//   images   arrived    no       any        --leave-running; CRIU cannot hold the memory in pipes
//   images   in-place   no       any        --eager; the target cannot restore lazily
//
// A rehearsal (--rehearse) takes the steps of the move up to the vote, and never goes further:
// OwnershipRecord::move_to() refuses its record the states in which the target's copy may run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace ppmr {

enum class MemoryPath {
  kApart,   // the page reader sends the memory, as a checkpoint of its own
  kImages,  // CRIU writes it to its images
};

// When a tree may run at the target.
enum class MayRun {
  kArrived,  // all of its memory is at the target; the pager puts it in place while the tree runs
  kDecided,  // the decision is made; the original stays frozen until all memory has followed
  kInPlace,  // CRIU has put all of its memory in place
};

// check_plan() refuses a plan that is in no row of the table above, where a plan is made or read.
struct MovePlan {
  MemoryPath memory = MemoryPath::kApart;
  MayRun may_run = MayRun::kArrived;
  bool is_live = false;  // rounds copy the memory while the tree runs, if the kernel can track it
  bool original_goes_on = false;  // a copy: both run, the copy in a pid namespace of its own
  bool is_rehearsal = false;      // the original goes on, and what was restored is discarded

  bool moves_memory_apart() const { return memory == MemoryPath::kApart; }
  bool restores_lazily() const { return may_run != MayRun::kInPlace; }
  bool may_run_before_memory() const { return may_run == MayRun::kDecided; }
  bool operator==(const MovePlan&) const = default;
};

// The options of the user.
struct MoveRequest {
  bool eager = false;
  bool post_copy = false;
  bool leave_running = false;
  bool stop_and_copy = false;
  bool rehearse = false;
  bool container = false;  // at least one tree is a container (--runc)
};

struct MoveAbilities {
  bool target_restores_lazily = true;  // its kernel has userfaultfd
  bool pipes_hold_memory = true;       // CRIU can hold the memory of each tree in pipes
};

// Pure. Leave `abilities` out as long as those of the nodes are unknown. Errors, in words for the
// user: EINVAL if the options exclude each other; EOPNOTSUPP if the nodes cannot do what was asked.
Result<MovePlan> plan_move(const MoveRequest& request, const MoveAbilities& abilities = {});

// Checks whether trees can move in this way. Errors: EPROTO.
Status check_plan(const MovePlan& plan, bool has_container);

void to_json(nlohmann::json& json, const MovePlan& plan);
// Throws nlohmann::json::exception if a field is missing or has another type. Errors: EPROTO for
// an unknown value. The caller checks the plan.
Result<MovePlan> parse_plan(const nlohmann::json& json);

}  // namespace ppmr
