// Takes the rights away from a data daemon that it does not need after its set-up, so that an
// attacker who takes it over gets little: no files, no programs, no other processes. What still
// needs rights is done by a separate process (privileged_helper.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/privilege/daemon_user.h"
#include "daemon/privilege/landlock.h"

namespace ppmr {

// What is in force, as the kernel reports it.
struct Confinement {
  DaemonUser user;
  std::string capabilities = "none";
  bool no_new_privileges = false;
  bool system_calls_filtered = false;
  int landlock = 0;          // version of the kernel's interface; 0: not active
  std::string landlock_why;  // why it is not active
};

// Must be called while the process has one thread. Descriptors that are open stay usable. Not
// undone by anything. With `locks_memory` root's daemon can lock any amount of memory from now on:
// by its limit or, if root may not raise that, with CAP_IPC_LOCK. Errors: EINVAL if the process has
// other threads; of the system calls. After an error the process must end, because it may have lost
// a part of its rights.
Result<Confinement> confine(const DaemonUser& user, const LandlockRules& rules,
                            bool locks_memory = false);

nlohmann::json describe(const Confinement& confinement);

}  // namespace ppmr
