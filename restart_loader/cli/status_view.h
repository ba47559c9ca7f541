// How a daemon's status looks to people, and the rates that follow from two of them.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "mount/control/mount_table.h"
#include "restart_loader/migration/command_error.h"

namespace ppmr {

// Adds "rate_bytes_per_s" to the status and to each of its checkpoints.
void add_rates(nlohmann::json& status, const nlohmann::json& earlier,
               std::chrono::nanoseconds between);

// A few aligned lines, one for each checkpoint at their end. Fields that are missing or of another
// type are left out: the daemon may be of another version.
std::string status_text(const nlohmann::json& status, const MountEntry& mount);

// For a mount whose daemon does not answer.
std::string silent_text(const MountEntry& mount, const CommandError& error);
std::string silent_json(const MountEntry& mount, const CommandError& error);

}  // namespace ppmr
