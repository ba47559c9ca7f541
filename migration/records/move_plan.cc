#include "migration/records/move_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 2> kMemoryNames = {"apart", "images"};
constexpr std::array<const char*, 3> kMayRunNames = {"arrived", "decided", "in-place"};

// Returns the value whose name is in the field.
template <typename Enum, size_t kCount>
Result<Enum> parse_name(const json& packed, const char* field,
                        const std::array<const char*, kCount>& names) {
  const std::string name = packed.at(field);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    return failure(EPROTO, std::string("unknown ") + field + " '" + name + "' in the plan");
  }
  return static_cast<Enum>(found - names.begin());
}

Status check_request(const MoveRequest& request) {
  if (request.eager && request.post_copy) return failure(EINVAL, "--eager excludes --post-copy");
  if (request.post_copy && request.leave_running) {
    return failure(EINVAL, "--post-copy excludes --leave-running");
  }
  if (request.rehearse && request.leave_running) {
    return failure(EINVAL, "--rehearse excludes --leave-running: the original goes on in any case");
  }
  if (request.rehearse && request.post_copy) {
    return failure(EINVAL,
                   "--rehearse excludes --post-copy: rehearse the move without it, which needs the "
                   "same of both nodes");
  }
  if (request.container && request.leave_running) {
    return failure(EINVAL,
                   "--runc: cannot copy a container (--leave-running), because its name is unique");
  }
  return {};
}

}  // namespace

Result<MovePlan> plan_move(const MoveRequest& request, const MoveAbilities& abilities) {
  if (Status possible = check_request(request); !possible) return failure(possible.error());
  MovePlan plan{.original_goes_on = request.leave_running, .is_rehearsal = request.rehearse};
  const bool can_be_lazy = !request.eager && abilities.target_restores_lazily;
  // The page reader needs frozen processes, but an original that goes on runs as soon as CRIU has
  // dumped it.
  const bool is_apart = can_be_lazy && !request.leave_running && abilities.pipes_hold_memory;
  plan.memory = is_apart ? MemoryPath::kApart : MemoryPath::kImages;
  plan.is_live = is_apart && !request.stop_and_copy;
  plan.may_run = can_be_lazy ? MayRun::kArrived : MayRun::kInPlace;
  if (!request.post_copy) return plan;
  if (!is_apart) {
    return failure(EOPNOTSUPP,
                   "--post-copy is not possible: the memory cannot be moved apart from CRIU's "
                   "images (see the warnings)");
  }
  plan.may_run = MayRun::kDecided;
  return plan;
}

Status check_plan(const MovePlan& plan, bool has_container) {
  const auto refuse = [](const char* why) {
    return failure(EPROTO, std::string("impossible plan: ") + why);
  };
  if (plan.moves_memory_apart() && !plan.restores_lazily()) {
    // An eager CRIU would leave zeros where the memory is not in the images.
    return refuse("the memory is apart from the images, so the restore must be lazy");
  }
  if (!plan.moves_memory_apart() && plan.may_run_before_memory()) {
    return refuse("processes cannot run before memory that is in the images");
  }
  if (!plan.moves_memory_apart() && plan.is_live) {
    return refuse("only memory that is apart from the images can be copied in rounds");
  }
  if (plan.moves_memory_apart() && plan.original_goes_on) {
    return refuse("the memory of an original that goes on cannot be read after its dump");
  }
  if (plan.is_rehearsal && plan.original_goes_on) return refuse("a copy is not rehearsed");
  if (plan.is_rehearsal && plan.may_run_before_memory()) {
    return refuse("what is rehearsed never runs, so its memory has to arrive before the end");
  }
  if (has_container && plan.original_goes_on) return refuse("a container cannot be copied");
  return {};
}

void to_json(json& packed, const MovePlan& plan) {
  packed = {{"memory", kMemoryNames[static_cast<size_t>(plan.memory)]},
            {"may_run", kMayRunNames[static_cast<size_t>(plan.may_run)]},
            {"live", plan.is_live},
            {"original_goes_on", plan.original_goes_on}};
  if (plan.is_rehearsal) packed["rehearsal"] = true;
}

Result<MovePlan> parse_plan(const json& packed) {
  const auto memory = parse_name<MemoryPath>(packed, "memory", kMemoryNames);
  if (!memory) return failure(memory.error());
  const auto may_run = parse_name<MayRun>(packed, "may_run", kMayRunNames);
  if (!may_run) return failure(may_run.error());
  return MovePlan{.memory = *memory,
                  .may_run = *may_run,
                  .is_live = packed.at("live"),
                  .original_goes_on = packed.at("original_goes_on"),
                  .is_rehearsal = packed.value("rehearsal", false)};
}

}  // namespace ppmr
