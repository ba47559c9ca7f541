// A process identified by its pid and start time, so ppmr notices if another process reuses the
// pid.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

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
// its newline. Identities are comparable only within one boot. Reads the file once; every later
// call returns the same, even when this process can open no more files. The first call waits while
// the node is short of descriptors or memory.
std::string read_boot_id();

// Returns the identifier of this installation (/etc/machine-id), which a restart does not change;
// empty if the node has none. Reads the file once, like read_boot_id().
std::string read_node_id();

// Returns whether exactly this process exists and is not a zombie. Errors: those of
// read_process_stat() except ESRCH: then it is unknown whether the process is alive, for example
// because this process can open no more files (EMFILE).
Result<bool> check_alive(const ProcessIdentity& process);

// Returns the same, but true if it is unknown whether the process is alive: callers restart, kill
// or forget a process that has ended.
bool is_alive(const ProcessIdentity& process);

// Returns whether the process has ended or begun to end: it executes no further instruction of its
// program. Returns false if that is unknown.
bool is_ending(const ProcessIdentity& process);

// Checks that `process`, identified during the boot `boot_id`, is still alive. Errors: ESRCH if the
// process has ended; the message says whether another process has its pid now; those of
// check_alive().
Status check_identity(const ProcessIdentity& process, const std::string& boot_id);

// Opens a pidfd of exactly this process, so no signal can reach another process that reuses the
// pid. Errors: ESRCH if the process has ended; those of pidfd_open(2) and of check_alive().
Result<UniqueFd> open_pidfd(const ProcessIdentity& process);

// Returns the process and its descendants without zombies, parents first. Exact only while none of
// these processes can fork. Errors: those of read_tree().
Result<std::vector<ProcessIdentity>> tasks_of_tree(pid_t root);

}  // namespace ppmr
