// Holds stopped tasks in a frozen control group of version 2.
//
// A pending SIGSTOP holds a task only until a SIGCONT arrives, and systemd sends SIGCONT when it
// stops a unit. If CRIU has died by then, the task runs. A task in a frozen group reacts to no
// signal but SIGKILL.
//
// The group is a child of the task's own group. So ppmr finds the way back without a record, and
// the limits and the service of the task stay the same.
//
// Rejected: the freezer of version 1. Not even SIGKILL ends a task that it holds.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/process_identity.h"

namespace ppmr {

// Moves the tasks into frozen groups named after `id`. Errors: ENOTSUP without a writable hierarchy
// of version 2; those of the file system. After an error, some tasks may be in such a group.
Status freeze_in_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id);

// Undoes freeze_in_groups(), also after an error and for only some of the tasks. Errors: those of
// the file system. After an error, some tasks may still be frozen.
Status release_from_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id);

// Removes the groups of `id` that are left when their tasks have ended.
void remove_frozen_groups(const std::string& id);

}  // namespace ppmr
