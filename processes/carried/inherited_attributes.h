// Attributes that only a task itself can set, and that its children inherit: personality, memory
// policy (NUMA), I/O flusher, merging of equal pages (KSM), signal for memory that has failed. CRIU
// forgets them. The process that becomes CRIU at the target sets them
// (restart_loader/criu/inherited_calls.cc), so that all restored tasks have them. This works only
// if the tasks of the tree agree, for example in a tree that `numactl` or `setarch` has started.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/process_identity.h"

namespace ppmr {

// Parses the memory policy in a line of /proc/PID/numa_maps: "default", "bind:0-1",
// "prefer=static:2", "interleave:0,2". nullopt: a policy that this version does not know.
std::optional<carried::MemoryPolicy> parse_memory_policy(const std::string& line);

// What the tasks of a tree inherit. `lost`: phrases for messages, one for each attribute that
// cannot be carried, with the reason. In `agreed` these attributes have the values of a new
// process.
struct InheritedAttributes {
  carried::Inherited agreed;
  std::vector<std::string> lost;
};

// Reads the attributes of each live thread of the tasks.
//
// The kernel shows the memory policy of a thread only with the first mapping, and inspects all
// pages of that mapping for it. If that would take long, because the first mapping is large or the
// threads are many, a few threads are asked for all. With `before`, what was read while the tasks
// ran, none is: frozen tasks must not wait for it. Errors: ESRCH, EACCES.
Result<InheritedAttributes> read_inherited(const std::vector<ProcessIdentity>& tasks,
                                           const carried::Inherited* before = nullptr);

// Returns the text that restart_loader/criu/inherited_calls.cc reads; empty: there is nothing to
// set. Leaves out NUMA nodes that are not in `nodes` ("0-3"). If none remains, the policy is the
// default one.
std::string inherited_text(const carried::Inherited& wanted, const std::string& nodes);

// Returns the names of the attributes that differ.
std::vector<std::string> unlike(const carried::Inherited& a, const carried::Inherited& b);

}  // namespace ppmr
