// The source mount of a move or of a protection, and the target behind it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/command_line/command_error.h"
#include "mount/mount_table.h"

namespace ppmr {

struct MoveEnds {
  MountEntry mount;
  nlohmann::json endpoint;  // address and credentials of the target's agent, see parse_endpoint()
};

struct MoveEndsOptions {
  std::string mountpoint;   // --mount; empty: the mount for `target_host`
  std::string target_host;  // --to
  std::string key_file;     // --key-file, for a mount that --to makes; empty: the default
  std::string state_directory;
};

// Returns the source mount and the target behind it. With --to, makes the mount if it does not
// exist yet. Errors: kUsage if the mount is not a source mount or has no target, or if --to has
// made it with another key; kNotMounted; kMigrationAborted if the mount is drained; kFailure; those
// of make_target_mount() and of the daemon.
CommandResult<MoveEnds> find_move_ends(const MoveEndsOptions& options);

}  // namespace ppmr
