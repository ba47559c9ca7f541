// Formats a daemon's status, and computes rates from two of them.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/command_line/command_error.h"
#include "mount/mount_table.h"

namespace ppmr {

// Adds "rate_bytes_per_s" to the status and to each of its checkpoints.
void add_rates(nlohmann::json& status, const nlohmann::json& earlier,
               std::chrono::nanoseconds between);

// Returns aligned lines; the last lines are for the checkpoints. Skips fields that are missing or
// of another type, because the daemon may have another version.
// `columns`: the width of the terminal; 0: lines of any length.
std::string status_text(const nlohmann::json& status, const MountEntry& mount, size_t columns = 0);

// Returns which epoch of a protected process is on the partner's disk: "; on the partner's disk:
// epoch 11, 38 s old". An event of `ppmr protect` has no age. Empty if the partner writes epochs to
// no disk.
std::string on_disk_text(const nlohmann::json& process);

// Returns what `ppmr status` prints for a mount whose daemon does not reply.
std::string no_reply_text(const MountEntry& mount, const CommandError& error);
std::string no_reply_json(const MountEntry& mount, const CommandError& error);

}  // namespace ppmr
