// Dumps and restores a program of its own with CRIU. `criu check` passes on nodes where no process
// can move: in containers without a capability, or with a CRIU that is too old for the kernel.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "cli/doctor/diagnosis.h"

namespace ppmr {

inline constexpr uid_t kNobody = 65534;

// Starts a sleeping program as this user, dumps and restores it, and ends it. Takes a fraction of a
// second; at most 20 s for each step. Needs root. Leaves nothing behind. Errors: ENOEXEC if the
// program cannot be started; ECHILD with the first error of CRIU; ETIMEDOUT.
Status try_criu(const std::string& criu, uid_t user);

// Judges a trial as this user. `may_set_resources`: CRIU has CAP_SYS_RESOURCE.
Diagnosis judge_trial(uid_t user, const Status& tried, bool may_set_resources);

}  // namespace ppmr
