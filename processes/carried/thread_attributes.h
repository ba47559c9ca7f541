// The attributes of threads and processes that CRIU forgets. Internal to carried_state.h.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"

namespace ppmr {

using Cpus = std::set<uint32_t>;

// Parses the kernel's lists of CPUs: "0-3,8". Ignores what it cannot parse.
Cpus parse_cpus(const std::string& text);

// Returns the CPUs to which the caller restricts a thread. `wanted`: the CPUs at the source; empty:
// no restriction. `allowed`: the CPUs that the target allows. An empty result: no restriction is
// possible.
Cpus choose_cpus(const Cpus& wanted, const Cpus& allowed);

// `allowed`: the CPUs that the control groups of the process allow. A thread that may use all of
// them has no restriction of its own. Errors: ESRCH, EACCES.
Result<carried::Thread> read_thread(pid_t thread, const Cpus& allowed);
// Adds warnings about what this node cannot provide. An error names the thread, the attribute and
// the reason.
Status apply_thread(const carried::Thread& wanted, pid_t thread, const Cpus& allowed,
                    std::vector<std::string>& warnings);

void read_process_attributes(pid_t pid, carried::Process& process);
Status apply_process_attributes(const carried::Process& wanted, pid_t pid,
                                std::vector<std::string>& warnings);

}  // namespace ppmr
