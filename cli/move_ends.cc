#include "cli/move_ends.h"

#include <fmt/format.h>

#include <filesystem>

#include "daemon/control/endpoint_file.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "daemon/control/target_mount.h"
#include "migration/relay/agent_client.h"

namespace ppmr {
namespace {

CommandResult<std::string> find_mountpoint(const MoveEndsOptions& options) {
  if (options.target_host.empty()) return options.mountpoint;
  const auto host = parse_target_host(options.target_host);
  if (!host) return command_failure(ExitCode::kUsage, "--to " + host.error().message);
  auto made = make_target_mount(*host, {options.key_file, options.state_directory});
  if (!made) return tl::unexpected(made.error());
  return host->mountpoint;
}

// Refuses --key-file with another key than that of a mount that exists already: --to does not
// change the key of such a mount.
CommandResult<void> check_key_file(const std::string& mountpoint, const nlohmann::json& endpoint,
                                   const MoveEndsOptions& options) {
  if (options.target_host.empty() || options.key_file.empty()) return {};
  const std::string used = endpoint.value("key_file", "");
  std::error_code unknown;
  if (std::filesystem::equivalent(used, options.key_file, unknown)) return {};
  return command_failure(
      ExitCode::kUsage,
      fmt::format("--key-file {}: {} is mounted already, with {}: leave out --key-file, or unmount "
                  "it first: fusermount3 -u {}",
                  options.key_file, mountpoint, used.empty() ? "a certificate" : "the key " + used,
                  mountpoint));
}

}  // namespace

CommandResult<MoveEnds> find_move_ends(const MoveEndsOptions& options) {
  const auto mountpoint = find_mountpoint(options);
  if (!mountpoint) return tl::unexpected(mountpoint.error());
  auto mount = find_mount(*mountpoint);
  if (!mount || !mount->remainder.empty()) {
    return command_failure(
        ExitCode::kNotMounted,
        *mountpoint +
            " is not the mount point of a ppmr source: `ppmr status` lists the mounts, and "
            "--to HOST needs none");
  }
  MoveEnds ends{mount->mount, {}};
  auto status = ask(ends.mount, to_request(request::Status{}));
  if (!status) return tl::unexpected(status.error());
  if (status->value("role", "") != "source") {
    return command_failure(ExitCode::kUsage,
                           *mountpoint +
                               " is a target mount: run this on the node where the processes run, "
                               "with its source mount");
  }
  if (status->value("draining", false)) {
    return command_failure(
        ExitCode::kMigrationAborted,
        *mountpoint + " is drained and begins nothing new: ppmr drain --resume " + *mountpoint);
  }
  auto endpoint = read_endpoint(ends.mount.source);
  if (!endpoint) return command_failure(ExitCode::kFailure, endpoint.error().message);
  ends.endpoint = *endpoint;
  if (auto same = check_key_file(*mountpoint, *endpoint, options); !same) {
    return tl::unexpected(same.error());
  }
  if (parse_endpoint(ends.endpoint).address.empty()) {
    return command_failure(ExitCode::kUsage,
                           *mountpoint + " has no target: it was started with --discard");
  }
  return ends;
}

}  // namespace ppmr
