// The source mount of a move or of a protection, and the target behind it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/command_line/command_error.h"
#include "mount/mount_table.h"

namespace ppmr {

struct MoveEnds {
  MountEntry mount;
  nlohmann::json endpoint;  // of the target's agent, see parse_endpoint()
};

struct MoveEndsOptions {
  std::string mountpoint;   // --mount; empty: that of `target_host`
  std::string target_host;  // --to
  std::string key_file;     // --key-file, for a mount that --to makes; empty: the default
  std::string state_directory;
};

// With --to: makes the mount if it is not there yet. Errors: kUsage for a mount that is none of a
// source, or one that --to has made with another key; kNotMounted; kMigrationAborted if it is
// drained; kFailure; those of make_target_mount() and of the daemon.
CommandResult<MoveEnds> find_move_ends(const MoveEndsOptions& options);

}  // namespace ppmr
