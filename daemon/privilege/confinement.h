// Takes away the rights that a data daemon does not need after its set-up. An attacker who controls
// the daemon then has no access to files, programs and other processes. A separate process does the
// steps that still need rights (privileged_helper.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/privilege/daemon_user.h"
#include "daemon/privilege/landlock.h"

namespace ppmr {

// The restrictions that are in force, as the kernel reports them.
struct Confinement {
  DaemonUser user;
  std::string capabilities = "none";
  bool no_new_privileges = false;
  bool system_calls_filtered = false;
  int landlock = 0;          // version of the kernel's interface; 0: not active
  std::string landlock_why;  // why Landlock is not active
};

// Confines this process, which must have only one thread. Open descriptors stay usable.
// The confinement is permanent. With `locks_memory`, a daemon that root started can lock any amount
// of memory: through its limit or, if root may not raise the limit, with CAP_IPC_LOCK. Errors:
// EINVAL if the process has other threads; the errors of the system calls. After an error the
// process must end, because it may have lost a part of its rights.
Result<Confinement> confine(const DaemonUser& user, const LandlockRules& rules,
                            bool locks_memory = false);

nlohmann::json describe(const Confinement& confinement);

}  // namespace ppmr
