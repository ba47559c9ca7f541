// Carries what CRIU forgets of a tree: attributes of its threads and processes, and options of its
// sockets. Reads them from outside while CRIU holds the tree at the source, and applies them from
// outside while CRIU holds the restored tree at the target. docs/faithful.md lists who carries
// what.
//
// Does not set a value that the restored task already has. So ppmr needs no rights for a value that
// CRIU restores.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/process_identity.h"

namespace ppmr {

// The name of the file among CRIU's images.
inline constexpr const char* kCarriedStateFile = "carried-state.img";
// The name of the file in the work directory of the source with what was read before the freeze:
// a state that has `inherited` only.
inline constexpr const char* kStateBeforeFile = "state-before.img";

// Reads the state of frozen tasks. `tasks`: the root comes first. `before`: what read_inherited()
// has found while they ran; null: it reads all now. Errors: ESRCH for a task that has ended;
// EACCES.
Result<carried::State> read_carried_state(const std::vector<ProcessIdentity>& tasks,
                                          const carried::Inherited* before = nullptr);

// Applies the state to the restored tasks. Returns warnings: what this node cannot have, for
// example a CPU that it lacks. Errors: what could not be applied, with the process and the reason;
// ESRCH if a process of the state is not among `tasks`. `tasks` has no zombies.
Result<std::vector<std::string>> apply_carried_state(const carried::State& state,
                                                     const std::vector<ProcessIdentity>& tasks);

// Returns the tasks by their pids inside the tree: without the pid namespaces above the root's. A
// process has the same pids on both nodes, and in the state. Errors: ESRCH.
Result<std::map<std::vector<int32_t>, ProcessIdentity>> tasks_by_pids(
    const std::vector<ProcessIdentity>& tasks);

// Returns the name of a value in the state that only a privileged user may set; empty: there is
// none. A target that restores only processes of ordinary users needs this.
std::string privilege_in(const carried::State& state);

// Errors: of the file system.
Status write_carried_state(const std::string& path, const carried::State& state);
// nullopt: there is no such file, because the source's version of ppmr writes none. Errors: of the
// file system; EPROTO for a file that ppmr has not written.
Result<std::optional<carried::State>> load_carried_state(const std::string& path);

}  // namespace ppmr
