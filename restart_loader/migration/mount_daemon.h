// Requests to the daemon of a mount, about a checkpoint that the user named by its path.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "mount/control/mount_table.h"
#include "restart_loader/migration/command_error.h"

namespace ppmr {

// A daemon that does not reply to a simple request within this time is reported as silent.
inline constexpr std::chrono::milliseconds kDaemonPatience{1000};
// A checkpoint that has not grown for so long is worth a notice.
inline constexpr std::chrono::milliseconds kQuietLimit{10'000};

struct CheckpointPath {
  MountEntry mount;
  std::string name;    // the checkpoint's: the first component below the mount point
  std::string inside;  // what follows it: "" or "a/b"
  std::string path;    // absolute, as the user named it
};

// Errors: kNotMounted if the path is in no ppmr mount or is the mount itself.
CommandResult<CheckpointPath> find_checkpoint(const std::string& path);

// Sends a request and returns the reply. Errors: kDaemonSilent; kFailure without permission; a
// refusal is kCheckpointFailed, kTimedOut (ETIMEDOUT) or kUsage (EINVAL).
CommandResult<nlohmann::json> ask(const MountEntry& mount, const nlohmann::json& request,
                                  std::chrono::milliseconds patience = kDaemonPatience);

// Like ask(), for a request that may take long: blocks up to `timeout` (without one, for any time),
// but not longer than the daemon replies to other requests.
CommandResult<nlohmann::json> ask_at_length(const MountEntry& mount, nlohmann::json request,
                                            std::optional<std::chrono::milliseconds> timeout);

// Blocks until the checkpoint is complete or sealed. It need not exist yet. Without a timeout,
// blocks as long as a source is connected. Calls `notice` with a sentence for the user when it
// starts to wait, and when the checkpoint has not grown for `quiet_limit`, because no event reports
// a dump that failed. Returns whether it had to wait.
CommandResult<bool> wait_until_complete(const CheckpointPath& checkpoint,
                                        std::optional<std::chrono::milliseconds> timeout,
                                        const std::function<void(const std::string&)>& notice,
                                        std::chrono::milliseconds quiet_limit = kQuietLimit);

}  // namespace ppmr
