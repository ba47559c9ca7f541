// A process named so that a number that was given to somebody else is noticed: pid and start time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot: field 22 of /proc/PID/stat, see proc(5)
  bool operator==(const ProcessIdentity&) const = default;
};

// Errors: ESRCH when there is no such process (a zombie is one).
Result<ProcessIdentity> identify(pid_t pid);
ProcessIdentity identify_self();

// The random identifier of this boot of the kernel (/proc/sys/kernel/random/boot_id), with its
// newline. Pids and start times are comparable only within one boot.
std::string read_boot_id();

// Whether exactly this process is there and is no zombie.
bool is_alive(const ProcessIdentity& process);

// Whether it is gone, or on its way out: it will not run any more.
bool is_ending(const ProcessIdentity& process);

// The process and all of its descendants but zombies, parents first, as they are now: exact only
// while they cannot fork. Errors: ESRCH when the root is not there.
Result<std::vector<ProcessIdentity>> tasks_of_tree(pid_t root);

}  // namespace ppmr
