// Holds stopped tasks in a frozen control group of version 2.
//
// A pending SIGSTOP holds a task only until somebody sends SIGCONT, as systemd does when it stops a
// unit: if CRIU has died, too, the task runs. No signal but SIGKILL moves a task in a frozen group.
//
// The group is a child of the task's own group, so the way back is known without a record, and the
// limits and the service of the task stay the same.
//
// Rejected: the freezer of version 1. A task that it holds does not even end by SIGKILL.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

// Moves the tasks into frozen groups named after `id`. Errors: ENOTSUP without a writable hierarchy
// of version 2; those of the file system. Then some tasks may be in such a group.
Status freeze_in_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id);

// Undoes freeze_in_groups(), also after an error and for only some of the tasks. Errors: of the
// file system; then some tasks may still be frozen.
Status release_from_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id);

// Removes the groups of `id` that are left when their tasks have ended.
void remove_frozen_groups(const std::string& id);

}  // namespace ppmr
