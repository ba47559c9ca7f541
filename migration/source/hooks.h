// Runs programs of the operator at three moments of a migration: for load balancers, names,
// watchdogs.
//
//   before-freeze   the memory is copied, the processes still run. A failure aborts the migration
//   after-run       all processes run at the target
//   after-abort     the processes continue here
//
// They are files of these names in the directory of --hook; one that is missing is skipped. They
// run on the source, as the user of `ppmr migrate`, one at a time, and are killed after
// --hook-timeout. Their environment has PPMR_MIGRATION (the ID), PPMR_PIDS (the roots), PPMR_TARGET
// (the address) and PPMR_REASON (of an abort). If `ppmr migrate` has died, the daemons finish the
// migration, and run no hooks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct HookSettings {
  std::string directory;  // empty: no hooks
  std::chrono::milliseconds timeout{10'000};
};

struct HookFacts {
  std::string migration;
  std::vector<pid_t> pids;
  std::string target;
  std::string reason;
};

// Errors: those of stat(2); EINVAL for a path that cannot be used; EACCES for a hook that cannot be
// executed; EPERM if a user other than this one or root may change the directory or a hook.
Status check_hooks(const HookSettings& settings);

// Returns when the hook `name` has ended. Errors: EPERM as above; ETIMEDOUT; ECHILD with what it
// printed. The message names the file.
Status run_hook(const HookSettings& settings, const std::string& name, const HookFacts& facts);

}  // namespace ppmr
