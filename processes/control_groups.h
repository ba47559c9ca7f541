// The control groups of a process, of both versions: where they are mounted here, whether one of
// them is frozen, and which CPUs they allow.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

// A directory of a control group, with the directories above it up to the mount point.
struct GroupDirectory {
  std::string mountpoint;
  std::string path;                      // the group itself, at or below the mount point
  bool is_unified = false;               // cgroup v2
  std::vector<std::string> controllers;  // only in version 1
  bool has(std::string_view controller) const;
};

// `groups`: the text of /proc/PID/cgroup. `mountinfo`: the text of /proc/self/mountinfo. Leaves out
// hierarchies that are not mounted here, and groups that the mounts do not show.
std::vector<GroupDirectory> find_group_directories(std::string_view groups,
                                                   std::string_view mountinfo);

// Returns the process's group of version 2. A node may have both versions. Errors: ENOTSUP if there
// is none that is visible here; those of read_process_file().
Result<GroupDirectory> unified_group_of(pid_t pid);

// Returns the file whose content freezes the process, "/sys/fs/cgroup/x/cgroup.freeze". A group
// above the process's own group may be the frozen one. nullopt: none is frozen.
std::optional<std::string> find_freezer(const std::vector<GroupDirectory>& directories);
std::optional<std::string> find_freezer_of(pid_t pid);
// Fails if the process or a descendant is in a frozen control group. Errors: EBUSY with the process
// and the command that thaws its group.
Status check_thawed(pid_t root);
// Returns the command that thaws the group.
std::string thaw_command(const std::string& freezer);

// Returns the list of CPUs ("0-3,8") that the control groups of the process allow. Empty: unknown.
std::string allowed_cpus(const std::vector<GroupDirectory>& directories);
std::string allowed_cpus_of(pid_t pid);

}  // namespace ppmr
