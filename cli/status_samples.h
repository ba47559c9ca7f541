// Queries the daemons of mounts in parallel, with a time limit of one second.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/command_line/command_error.h"
#include "mount/mount_table.h"

namespace ppmr {

struct StatusSample {
  MountEntry mount;
  std::chrono::steady_clock::time_point taken;
  CommandResult<nlohmann::json> status;
};

// Returns the mount at `mountpoint`, or all mounts if it is empty.
CommandResult<std::vector<MountEntry>> chosen_mounts(const std::string& mountpoint);

// Queries the daemons. Skips a daemon that did not reply when `just_before` was sampled.
std::vector<StatusSample> sample_status(const std::vector<MountEntry>& mounts,
                                        const std::vector<StatusSample>& just_before = {});

// Adds the rates since the sample of the same mount in `before`.
void add_rates_since(const std::vector<StatusSample>& before, StatusSample& sample);

}  // namespace ppmr
