// Under a scheduler, a process of the allocation's step holds each host for the job (`ppmr job
// hold`). The agent makes job nodes only on hosts of the step, and inside the step's control group.
// The nodes end with the step.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

struct StepHolder {
  ProcessIdentity process{};
  std::string group{};  // the step's control group, see step_group(); empty: it has no group
};

nlohmann::json to_json(const StepHolder& holder);
// Parses a holder. Throws nlohmann::json::exception.
StepHolder parse_step_holder(const nlohmann::json& json);

// The holders that have reported to this agent. A holder repeats its report, because a new agent
// has no record of the holder. Threads: any.
class StepHolders {
 public:
  // Adds a holder. `uid`: the user of `process`, from the kernel. Errors: EINVAL; ESRCH; EAGAIN:
  // the user has too many holders.
  Status add(uid_t uid, const std::string& allocation, pid_t process);
  // Waits until a living holder has reported, and returns it. Errors: ENOENT with a remedy.
  Result<StepHolder> await(uid_t uid, const std::string& allocation,
                           std::chrono::milliseconds patience);

 private:
  using Key = std::pair<uid_t, std::string>;  // user and allocation

  Mutex mutex_;
  CondVar added_;
  std::map<Key, StepHolder> holders_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
