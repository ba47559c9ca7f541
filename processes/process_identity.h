// A process identified by its pid and start time, so ppmr notices if another process reuses the
// pid.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot: field 22 of /proc/PID/stat, see proc(5)
  bool operator==(const ProcessIdentity&) const = default;
};

// Returns the identity of a process, which may be a zombie. Errors: ESRCH when there is no such
// process.
Result<ProcessIdentity> identify(pid_t pid);
ProcessIdentity identify_self();

// Returns the random identifier of this boot of the kernel (/proc/sys/kernel/random/boot_id), with
// its newline. Identities are comparable only within one boot.
std::string read_boot_id();

// Returns the identifier of this installation (/etc/machine-id), which a restart does not change;
// empty if the node has none.
std::string read_node_id();

// Returns whether exactly this process exists and is not a zombie.
bool is_alive(const ProcessIdentity& process);

// Returns whether the process has ended or begun to end: it executes no further instruction of its
// program.
bool is_ending(const ProcessIdentity& process);

// Checks that `process`, identified during the boot `boot_id`, is still alive. Errors: ESRCH; the
// message says whether another process has its pid now.
Status check_identity(const ProcessIdentity& process, const std::string& boot_id);

// Returns the process and its descendants without zombies, parents first. Exact only while none of
// these processes can fork. Errors: ESRCH when there is no process `root`.
Result<std::vector<ProcessIdentity>> tasks_of_tree(pid_t root);

}  // namespace ppmr
