#include "fuse_target/target_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "buffer_pool/host_name.h"
#include "fuse_target/target_mount.h"
#include "mount/command_line/credential_options.h"
#include "mount/command_line/size_option.h"
#include "mount/command_line/transport_option.h"
#include "mount/control/control_socket.h"
#include "mount/daemon/daemon.h"
#include "mount/daemon/descriptor_limit.h"
#include "mount/daemon/reload.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

struct Flags {
  TargetOptions target;
  Credentials credentials;
  std::string log_file;
  bool foreground = false;
};

// The mount point is checked first, because a wrong one is the most common mistake.
Status check_mountpoint(const std::string& path) {
  std::error_code error;
  const auto found = std::filesystem::status(path, error);
  if (error.value() == ENOTCONN) {
    return failure(EBUSY, "mount point " + path +
                              ": the mount of a dead daemon is there; remove it with "
                              "`fusermount3 -u " +
                              path + "`");
  }
  if (!std::filesystem::exists(found)) return system_failure("mount point", path, ENOENT);
  if (!std::filesystem::is_directory(found)) return system_failure("mount point", path, ENOTDIR);
  return {};
}

// Who may restart must also be allowed to send.
Status check_restart_peers(const TargetOptions& options, const Credentials& credentials) {
  const auto& allowed = credentials.allowed_peers;
  for (const std::string& name : options.restart_peers) {
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      return failure(EINVAL, "--allow-restart-from " + name +
                                 ": not among the peers that --allow-peer allows, so it can send "
                                 "nothing: add --allow-peer " +
                                 name);
    }
  }
  return {};
}

ExitCode exit_code_of(const Error& error) {
  const bool environment = error.errno_value == EADDRINUSE || error.errno_value == EADDRNOTAVAIL ||
                           error.errno_value == ENODEV;  // no RDMA device
  return environment ? ExitCode::kFailure : ExitCode::kUsage;
}

ExitCode run(Daemon& daemon, TargetOptions options, const Credentials& credentials) {
  if (auto checked = check_mountpoint(options.mountpoint); !checked) {
    return daemon.failed(checked.error(), ExitCode::kMountFailed);
  }
  options.mountpoint = std::filesystem::canonical(options.mountpoint).string();
  if (!options.spill_directory.empty()) {
    options.spill_directory = std::filesystem::absolute(options.spill_directory).string();
  }
  raise_descriptor_limit();  // each 64 MiB of memory, spilled image and loan keeps a file open
  auto security = Security::load(credentials);
  if (!security) return daemon.failed(security.error(), ExitCode::kUsage);
  // Authentication is required also on loopback: without it, --allow-restart would let any user of
  // this node become root.
  if (options.allow_restart && !(*security)->authenticates() && !credentials.insecure) {
    return daemon.failed(
        {EACCES,
         "--allow-restart lets peers run processes here as root: authenticate them "
         "with --key-file or certificates (or use --insecure)"},
        ExitCode::kUsage);
  }
  // Beyond loopback, anyone on the network could then run processes here as root. That takes two
  // options, so that neither of them says it by accident.
  if (options.allow_restart && credentials.insecure && !credentials.trusted_fabric) {
    const auto loopback = is_loopback_address(options.listen_address);
    if (!loopback) {
      return daemon.failed({loopback.error().errno_value, "--listen: " + loopback.error().message},
                           exit_code_of(loopback.error()));
    }
    if (!*loopback) {
      return daemon.failed(
          {EACCES,
           "--allow-restart with --insecure lets everyone on the network run processes here as "
           "root: authenticate peers with --key-file or certificates, or add --trusted-fabric if "
           "no other machine can reach " +
               options.listen_address},
          ExitCode::kUsage);
    }
  }
  if (Status checked = check_restart_peers(options, credentials); !checked) {
    return daemon.failed(checked.error(), ExitCode::kUsage);
  }
  if (!options.audit_file.empty()) {
    options.audit_file = std::filesystem::absolute(options.audit_file).string();
  }
  auto audit = AuditTrail::open(options.audit_file);
  if (!audit) return daemon.failed(audit.error(), ExitCode::kUsage);
  options.audit = std::move(*audit);
  options.security = *security;
  options.trusted_fabric = credentials.trusted_fabric;
  options.state_directory = std::filesystem::absolute(options.state_directory).string();
  options.target_name = host_name();
  auto target = TargetMount::create(options);
  if (!target) return daemon.failed(target.error(), exit_code_of(target.error()));
  auto control = ControlServer::create();
  if (!control) return daemon.failed(control.error(), ExitCode::kFailure);
  StopSignals signals([&](int) { (*target)->stop(); },
                      [&] { reload(daemon, **security, *options.audit); });
  const auto served = (*target)->serve((*control)->path(), [&] {
    (*control)->serve([&](const nlohmann::json& request, const ControlClient&,
                          std::vector<UniqueFd>& descriptors) {
      return (*target)->answer(request, descriptors);
    });
    daemon.ready();
    spdlog::info("target mounted at {}, listening on {}", options.mountpoint,
                 (*target)->listen_address());
    if (const auto warning = options.security->warning(); !warning.empty()) {
      spdlog::warn("{}", warning);
    }
  });
  (*target)->stop_answering();
  control->reset();  // closes the control socket first: its requests use the target
  if (!served) return daemon.failed(served.error(), ExitCode::kMountFailed);
  return ExitCode::kSuccess;
}

}  // namespace

CLI::App* add_target_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "target", "Mount the directory that receives checkpoints, and listen for sources");
  TargetOptions& target = flags->target;
  command->add_option("MOUNTPOINT", target.mountpoint, "directory to mount on")->required();
  command->add_option("--listen", target.listen_address, "HOST:PORT for sources to connect to")
      ->required();
  add_transport_options(*command, target.transport);
  add_size_option(*command, "--pool-size", target.ready_bytes,
                  "memory to keep ready ahead of need, part of the limit");
  add_size_option(*command, "--memory-limit", target.limit_bytes,
                  "memory for images (0: half of the available memory at start)");
  command->add_option("--spill-dir", target.spill_directory,
                      "spill images beyond the limit to files here; without it writers get ENOSPC");
  command->add_flag("--consume", target.consume,
                    "free bytes once read; each file can be read once, front to back");
  command->add_flag("--wait-for-files", target.wait_for_files,
                    "look-up of a missing file waits until the checkpoint is complete");
  add_credential_options(*command, flags->credentials);
  CLI::Option* allow_restart =
      command->add_flag("--allow-restart", target.allow_restart,
                        "let every accepted source restart processes here with ppmr migrate");
  command
      ->add_option("--allow-restart-from", target.restart_peers,
                   "like --allow-restart, but only for peers with this name; can be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->excludes(allow_restart);
  command
      ->add_option("--state-dir", target.state_directory, "directory for the records of migrations")
      ->capture_default_str();
  add_peer_timeout_option(*command, target.peer_timeout);
  command->add_flag("--allow-other", target.allow_other, "allow access by other users");
  command->add_option("--log-file", flags->log_file, "log to this file instead of syslog");
  add_audit_option(*command, target.audit_file);
  command->add_flag("-f,--foreground", flags->foreground, "stay in the foreground");
  command->callback([flags, &exit_code] {
    flags->target.allow_restart |= !flags->target.restart_peers.empty();
    exit_code = run_daemon(
        {.name = "ppmr target", .foreground = flags->foreground, .log_file = flags->log_file},
        [&](Daemon& daemon) { return run(daemon, flags->target, flags->credentials); });
  });
  return command;
}

}  // namespace ppmr
