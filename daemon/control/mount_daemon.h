// Requests to the daemon of a mount about a checkpoint that the user named by its path.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/command_line/command_error.h"
#include "mount/mount_table.h"

namespace ppmr {

// A daemon that does not reply to a simple request within this time is reported as silent.
inline constexpr std::chrono::milliseconds kDaemonPatience{1000};
// When a checkpoint has not grown for this long, the user gets a notice.
inline constexpr std::chrono::milliseconds kQuietLimit{10'000};

struct CheckpointPath {
  MountEntry mount;
  std::string name;    // name of the checkpoint: the first component below the mount point
  std::string inside;  // the path inside the checkpoint: "" or "a/b"
  std::string path;    // the user's path, made absolute
};

// Finds the checkpoint of a path. Errors: kNotMounted if the path is in no ppmr mount, or is the
// mount itself.
CommandResult<CheckpointPath> find_checkpoint(const std::string& path);

// Sends a request and returns the reply. Errors: kDaemonSilent; kFailure if this user may not send
// requests. If the daemon refuses the request: kTimedOut for the errno ETIMEDOUT, kUsage for
// EINVAL, and kCheckpointFailed for others.
CommandResult<nlohmann::json> ask(const MountEntry& mount, const nlohmann::json& request,
                                  std::chrono::milliseconds patience = kDaemonPatience);

// Ends file operations that block because the daemon of the mount is stopped. If the daemon does
// not reply within five seconds, calls umount2(2) with MNT_FORCE: the kernel then fails all present
// and later operations on the mount. The mount point stays mounted while processes use it.
void fail_requests_if_silent(const MountEntry& mount);

// A time limit counts either all time, or only the time in which the mount transfers no bytes.
enum class Timeout { kTotal, kWithoutProgress };

// Does the same as ask() for a request that may take long. Blocks up to `timeout`; nullopt: without
// limit. Returns an error earlier if the daemon no longer replies to other requests. Passes
// `descriptors` with the request.
CommandResult<nlohmann::json> ask_at_length(const MountEntry& mount, nlohmann::json request,
                                            std::optional<std::chrono::milliseconds> timeout,
                                            Timeout limits = Timeout::kTotal,
                                            std::vector<UniqueFd> descriptors = {});

// Blocks until the checkpoint is complete or sealed. If the checkpoint does not exist yet and there
// is no timeout, waits only while a source is connected. Calls `notice` with a sentence for the
// user when it starts to wait, and when the checkpoint has not grown for `quiet_limit`, because no
// event reports a dump that failed. Returns whether it had to wait.
CommandResult<bool> wait_until_complete(const CheckpointPath& checkpoint,
                                        std::optional<std::chrono::milliseconds> timeout,
                                        const std::function<void(const std::string&)>& notice,
                                        std::chrono::milliseconds quiet_limit = kQuietLimit);

}  // namespace ppmr
