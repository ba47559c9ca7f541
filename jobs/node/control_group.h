// The control group of a job node. Under a scheduler, this group is inside the group of the step
// that holds the host for the job. So the scheduler limits and accounts the node, even after a
// move.
#pragma once

#include <string>

namespace ppmr {

// The parent group of job nodes without a step.
inline constexpr const char* kJobGroups = "/ppmr-job";

// Returns the deepest control group of a process that belongs to a step of Slurm's job
// `allocation`. Empty if the process is in no group of such a step. `process_groups`: the text of
// /proc/PID/cgroup of the process. Users cannot move a process into Slurm's groups, so the group
// proves the allocation. Slurm's groups are /slurm/uid_U/job_J/step_S/task_T; with cgroup v2,
// /system.slice/slurmstepd.scope/job_J/...
std::string step_group(const std::string& process_groups, const std::string& allocation);

// Removes the empty groups from `group` upwards, in all hierarchies. runc leaves the parents that
// it made, and Slurm does not remove groups that it did not make.
void remove_empty_groups(const std::string& group);

}  // namespace ppmr
