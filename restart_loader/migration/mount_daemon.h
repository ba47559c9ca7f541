// A checkpoint as its path names it, and the daemon of the mount that it is in.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "mount/control/mount_table.h"
#include "restart_loader/migration/command_error.h"

namespace ppmr {

// A daemon that does not answer a plain question in this time is reported as silent.
inline constexpr std::chrono::milliseconds kDaemonPatience{1000};
// Nothing new of a checkpoint for so long is worth a word.
inline constexpr std::chrono::milliseconds kQuietLimit{10'000};

struct CheckpointPath {
  MountEntry mount;
  std::string name;    // the checkpoint's: the first component below the mount point
  std::string inside;  // what follows it: "" or "a/b"
  std::string path;    // absolute, of what the user named
};

// Errors: kNotMounted when the path is in no ppmr mount or is the mount itself.
CommandResult<CheckpointPath> find_checkpoint(const std::string& path);

// Asks and gives back what the daemon accepted. Errors: kDaemonSilent, kFailure when we may not
// ask; a refusal is kCheckpointFailed, kTimedOut (ETIMEDOUT) or kUsage (EINVAL).
CommandResult<nlohmann::json> ask(const MountEntry& mount, const nlohmann::json& request,
                                  std::chrono::milliseconds patience = kDaemonPatience);

// The same for a request that may take long: waits up to `timeout` (forever without), but no longer
// than the daemon answers other questions.
CommandResult<nlohmann::json> ask_at_length(const MountEntry& mount, nlohmann::json request,
                                            std::optional<std::chrono::milliseconds> timeout);

// Waits until the checkpoint is complete or sealed: with a timeout so long, also for one that does
// not exist yet; without, as long as there is a source that could deliver. `notice` is called with
// a sentence for people when there is something to wait for, and once more when nothing has come
// for `quiet_limit`: nobody tells us of a dump that failed. Returns whether it had to wait.
CommandResult<bool> wait_until_complete(const CheckpointPath& checkpoint,
                                        std::optional<std::chrono::milliseconds> timeout,
                                        const std::function<void(const std::string&)>& notice,
                                        std::chrono::milliseconds quiet_limit = kQuietLimit);

}  // namespace ppmr
