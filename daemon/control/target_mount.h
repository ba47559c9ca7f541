// The source mount behind `--to HOST`: one for each target, below /run/ppmr/to. The first command
// that names the target starts its daemon; the daemon ends after kStaySeconds without use.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/command_line/command_error.h"

namespace ppmr {

// The port on which a target listens by default.
inline constexpr const char* kTargetPort = "7440";
// Where the mounts behind `--to` find their credentials: the key of the cluster (`ppmr keygen`), or
// a configuration of `ppmr source` with other credentials or options.
inline constexpr const char* kClusterKey = "/etc/ppmr/key";
inline constexpr const char* kTargetMountConfig = "/etc/ppmr/to.conf";

// How long a daemon that was started on demand waits for its next use.
inline constexpr unsigned kStaySeconds = 300;

struct TargetHost {
  std::string address;     // HOST:PORT or [IPV6]:PORT
  std::string mountpoint;  // where the mount is
};

// Parses HOST, HOST:PORT, IPV6 or [IPV6]:PORT. Errors: EINVAL.
Result<TargetHost> parse_target_host(const std::string& text);

// Returns why a daemon of a mount did not start: its output `said`, and the file with its options
// if it has one. Leaves out the daemon's name and its reference to the manual, because the command
// adds its own.
std::string start_error(const std::string& said, bool has_config_file, ExitCode code);

struct TargetMountOptions {
  std::string key_file;         // empty: kTargetMountConfig if it exists, else kClusterKey
  std::string state_directory;  // of the command's records; the daemon settles their migrations
};

// Makes the mount unless it exists. Returns when its daemon will stay for kStaySeconds. Several
// commands may call this at once. Errors: kUsage without credentials, or if the mount exists with
// another target; kMountFailed; kPeerFailed if the target does not answer; kDaemonSilent.
CommandResult<void> make_target_mount(const TargetHost& host, const TargetMountOptions& options);

}  // namespace ppmr
