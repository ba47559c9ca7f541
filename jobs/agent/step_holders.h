// Under a scheduler a process of the allocation's step holds each host for the job (`ppmr job
// hold`). Job nodes are made only where the step is, in its control group, and end with it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

struct StepHolder {
  ProcessIdentity process{};
  std::string group{};  // the step's control group, see step_group(); empty: it has none
};

nlohmann::json to_json(const StepHolder& holder);
// Throws nlohmann::json::exception.
StepHolder parse_step_holder(const nlohmann::json& json);

// The holders that have reported to this agent. They repeat it, because a new agent does not know
// them. Threads: any.
class StepHolders {
 public:
  // `process`: of the user `uid`, as the kernel says. Errors: EINVAL; ESRCH; EAGAIN: the user holds
  // too much.
  Status add(uid_t uid, const std::string& allocation, pid_t process);
  // Waits until a living holder is known. Errors: ENOENT with a remedy.
  Result<StepHolder> await(uid_t uid, const std::string& allocation,
                           std::chrono::milliseconds patience);

 private:
  using Key = std::pair<uid_t, std::string>;  // user and allocation

  std::mutex mutex_;
  std::condition_variable added_;
  std::map<Key, StepHolder> holders_;  // guarded by mutex_
};

}  // namespace ppmr
