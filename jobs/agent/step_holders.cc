#include "jobs/agent/step_holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "jobs/node/control_group.h"
#include "jobs/node/node_spec.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kHoldersPerUserMax = 64;

}  // namespace

nlohmann::json to_json(const StepHolder& holder) {
  return {{"pid", holder.process.pid},
          {"start_time", holder.process.start_time},
          {"group", holder.group}};
}

StepHolder parse_step_holder(const nlohmann::json& json) {
  return {.process = {.pid = json.at("pid"), .start_time = json.at("start_time")},
          .group = json.at("group")};
}

Status StepHolders::add(uid_t uid, const std::string& allocation, pid_t process) {
  if (!is_allocation(allocation)) {
    return failure(EINVAL, "'" + allocation + "' is not the number of a scheduler's job");
  }
  const auto identity = identify(process);
  if (!identity) return failure(identity.error());
  const auto groups = read_process_file(process, "cgroup");
  if (!groups) return failure(groups.error());
  const StepHolder holder{.process = *identity, .group = step_group(*groups, allocation)};
  MutexLock lock(mutex_);
  std::erase_if(holders_, [](const auto& entry) { return !is_alive(entry.second.process); });
  const auto of_user = std::count_if(holders_.begin(), holders_.end(),
                                     [&](const auto& entry) { return entry.first.first == uid; });
  const Key key(uid, allocation);
  if (!holders_.contains(key) && static_cast<size_t>(of_user) >= kHoldersPerUserMax) {
    return failure(EAGAIN,
                   fmt::format("user {} holds this host for {} jobs already", uid, of_user));
  }
  holders_[key] = holder;
  added_.notify_all();
  return {};
}

Result<StepHolder> StepHolders::await(uid_t uid, const std::string& allocation,
                                      std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  const auto find = [&]() PPMR_REQUIRES(mutex_) {
    const auto found = holders_.find({uid, allocation});
    return found != holders_.end() && is_alive(found->second.process) ? &found->second : nullptr;
  };
  if (!added_.wait_for(mutex_, patience,
                       [&]() PPMR_REQUIRES(mutex_) { return find() != nullptr; })) {
    return failure(ENOENT, fmt::format("no step of job {} of user {} holds this host: `ppmr job "
                                       "run` starts it with srun, whose messages say more",
                                       allocation, uid));
  }
  return *find();
}

}  // namespace ppmr
