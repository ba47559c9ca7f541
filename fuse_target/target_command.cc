#include "fuse_target/target_command.h"

#include <fcntl.h>
#include <sys/file.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/descriptor_limit.h"
#include "base/host_name.h"
#include "daemon/background/daemon.h"
#include "daemon/command_line/config_file.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/mount_flags.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/transport_option.h"
#include "daemon/data_daemon/data_daemon.h"
#include "fuse_target/target_mount.h"
#include "preflight/policy/restart_policy.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

struct Flags {
  TargetOptions target;
  Credentials credentials;
  std::string listen_address;
  std::string state_directory = "/var/lib/ppmr";
  MountFlags daemon;
  std::string keep_key;
  std::chrono::milliseconds keep_age{0};
};

// A peer that may restart processes must also be allowed to connect.
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

// Checks that a target could listen on the address. Listens on a free port instead of the given
// one, because the target may be running while its options are checked.
Status check_listening(const Security& security, const std::string& address) {
  const std::string probed = address.substr(0, address.rfind(':')) + ":0";
  const auto listener = security.listener(probed);
  if (listener) return {};
  std::string why = listener.error().message;
  if (const size_t at = why.find(probed); at != std::string::npos) {
    why.replace(at, probed.size(), address);
  }
  return failure(listener.error().errno_value, "--listen: " + why);
}

// Checks that the options make it safe to let peers restart processes here.
Status check_restarts(const TargetOptions& options, const Security& security, const Flags& flags) {
  const Credentials& credentials = flags.credentials;
  // Authentication is required even on loopback: without it, --allow-restart would let any user of
  // this node become root.
  if (options.allow_restart && !security.authenticates() && !credentials.insecure) {
    return failure(EACCES,
                   "--allow-restart lets peers run processes here as root: authenticate them "
                   "with --key-file or certificates (or use --insecure)");
  }
  // If the target listens on the network without authentication, anyone there could run processes
  // here as root. This requires two options, so that no operator asks for it by accident.
  if (options.allow_restart && credentials.insecure && !credentials.trusted_fabric) {
    const auto loopback = is_loopback_address(flags.listen_address);
    if (!loopback) {
      return failure(loopback.error().errno_value, "--listen: " + loopback.error().message);
    }
    if (!*loopback) {
      return failure(
          EACCES,
          "--allow-restart with --insecure lets everyone on the network run processes here as "
          "root: authenticate peers with --key-file or certificates, or add --trusted-fabric if "
          "no other machine can reach " +
              flags.listen_address);
    }
  }
  if (!options.restart_policy.empty()) {
    if (auto policy = read_restart_policy(options.restart_policy); !policy) {
      return failure(policy.error());
    }
  }
  return check_restart_peers(options, credentials);
}

// Returns 0 if /proc/meminfo has no such line.
size_t memory_bytes(const std::string& line) {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    if (word != line) continue;
    size_t kib = 0;
    if (meminfo >> kib) return kib << 10;
  }
  return 0;
}

Result<size_t> available_memory_bytes() {
  if (const size_t bytes = memory_bytes("MemAvailable:"); bytes > 0) return bytes;
  return failure(EIO, "default memory limit: no MemAvailable in /proc/meminfo; use --memory-limit");
}

Status check_spill_directory(const std::string& directory) {
  std::error_code error;
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return {};
  const bool is_missing = !error || error == std::errc::no_such_file_or_directory;
  const std::string what = "--spill-dir " + directory + ": ";
  if (!is_missing) return failure(error.value(), what + error.message());
  return failure(ENOENT, what + "there is no such directory: make it (mkdir -m 700 " + directory +
                             "), or name another");
}

// Refuses a limit above the memory of the node: the kernel would kill the target before it reached
// the limit.
Status check_limit(size_t limit_bytes) {
  const size_t total_bytes = memory_bytes("MemTotal:");
  if (total_bytes == 0 || limit_bytes <= total_bytes) return {};
  return failure(EINVAL, "--memory-limit " + format_size(limit_bytes) +
                             " is more than the memory of this node (" + format_size(total_bytes) +
                             "): choose less, or leave it out for half of what is available");
}

// Returns the options of the privileged helper, the process that does what the daemon may not do
// (see DataDaemon::start_helper()).
HelperOptions helper_options(const Flags& flags, const TargetOptions& target) {
  HelperOptions options{.spill_directory = target.spill_directory,
                        .keep_directory = target.keep_directory};
  if (target.allow_restart) {
    options.agent = {"migration-agent", "--mountpoint=" + target.mountpoint,
                     "--state-dir=" + std::filesystem::absolute(flags.state_directory).string()};
    // Leaves out an option whose value is empty: after `--name=`, CLI11 would take the next
    // argument as the value.
    if (!target.audit_file.empty()) options.agent.push_back("--audit-file=" + target.audit_file);
    if (!target.restart_policy.empty())
      options.agent.push_back("--restart-policy=" + target.restart_policy);
    if (target.allow_root_restart) options.agent.emplace_back("--allow-root-restart");
    options.settle = {"migration-settle", "--role=target", options.agent[1], options.agent[2]};
    if (!target.keep_directory.empty()) {
      options.epochs = {"write-epochs", "--keep-dir=" + target.keep_directory,
                        "--keep-key=" + std::filesystem::absolute(flags.keep_key).string(),
                        options.agent[1], options.agent[2]};
    }
  }
  return options;
}

// Reads the key of kept checkpoints. Returns the directory, which is locked as long as it is open:
// two targets in one directory would remove each other's files.
Result<UniqueFd> open_keep_directory(TargetOptions& options, const Flags& flags) {
  if (options.keep_directory.empty()) return UniqueFd();
  const std::string what = "--keep-dir " + options.keep_directory;
  if (flags.keep_key.empty()) {
    return failure(EINVAL, what +
                               ": checkpoints are secrets, so kept ones are encrypted: make a key "
                               "with `ppmr keygen FILE`, and add --keep-key FILE");
  }
  auto keys = read_keep_keys(flags.keep_key);
  if (!keys) return failure(keys.error().errno_value, "--keep-key: " + keys.error().message);
  options.keep_keys = std::move(*keys);
  UniqueFd directory(::open(options.keep_directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    return failure(
        errno,
        what + ": " + std::strerror(errno) +
            (errno == ENOENT ? ": make it (mkdir -m 700 " + options.keep_directory + ")" : ""));
  }
  // A check of the options must not fail because the target runs.
  if (!flags.daemon.check && ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    return failure(errno, what + ": " +
                              (errno == EWOULDBLOCK
                                   ? "another target uses it: give each target a directory of its "
                                     "own"
                                   : std::strerror(errno)));
  }
  return directory;
}

ExitCode exit_code_of(const Error& error) {
  const bool environment = error.errno_value == EADDRINUSE || error.errno_value == EADDRNOTAVAIL ||
                           error.errno_value == ENODEV;  // no RDMA device
  return environment ? ExitCode::kFailure : ExitCode::kUsage;
}

// Completes the options: absolute paths, before the daemon leaves its working directory, and values
// that depend on others.
Status complete(TargetOptions& options, const Flags& flags) {
  options.allow_restart |= options.allow_root_restart || !options.restart_policy.empty();
  for (std::string* path :
       {&options.spill_directory, &options.keep_directory, &options.restart_policy}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path).string();
  }
  options.trusted_fabric = flags.credentials.trusted_fabric;
  options.target_name = host_name();
  if (options.limit_bytes == 0) {
    const auto available = available_memory_bytes();
    if (!available) return failure(available.error());
    options.limit_bytes = std::max(*available / 2, 2 * kLimitMinBytes);
  }
  return {};
}

ExitCode run(Daemon& daemon, const Flags& flags) {
  TargetOptions options = flags.target;
  DataDaemon target(daemon, {.mountpoint = options.mountpoint,
                             .flags = flags.daemon,
                             .credentials = flags.credentials,
                             .transport = options.transport,
                             .locks_memory = options.lock_memory});
  if (auto checked = target.check(); !checked) return daemon.failed(checked.error());
  raise_descriptor_limit();  // each 64 MiB of memory, spilled image and loan keeps a file open
  if (Status possible = check_limit(options.limit_bytes); !possible) {
    return daemon.failed(possible.error(), ExitCode::kUsage);
  }
  if (Status completed = complete(options, flags); !completed) {
    return daemon.failed(completed.error(), ExitCode::kFailure);
  }
  if (Status spills = check_spill_directory(options.spill_directory); !spills) {
    return daemon.failed(spills.error(), ExitCode::kUsage);
  }
  options.mountpoint = target.mountpoint();
  options.audit = target.audit();
  options.audit_file = target.audit_file();
  if (Status checked = check_restarts(options, *target.security(), flags); !checked) {
    return daemon.failed(checked.error(), exit_code_of(checked.error()));
  }
  auto keep_lock = open_keep_directory(options, flags);
  if (!keep_lock) return daemon.failed(keep_lock.error(), ExitCode::kUsage);
  if (flags.daemon.check) {
    const Status listens = check_listening(*target.security(), flags.listen_address);
    return listens ? ExitCode::kSuccess
                   : daemon.failed(listens.error(), exit_code_of(listens.error()));
  }
  auto listener = target.security()->listener(flags.listen_address);
  if (!listener) {
    const Error& error = listener.error();
    return daemon.failed({error.errno_value, "--listen: " + error.message}, exit_code_of(error));
  }
  if (auto opened = target.open(); !opened) return daemon.failed(opened.error());
  auto started = target.start_helper(helper_options(flags, options));
  if (!started) return daemon.failed(started.error());
  options.helper = target.helper();
  if (auto dropped = target.drop_rights(); !dropped) return daemon.failed(dropped.error());
  options.confinement = target.confinement();
  auto mount = TargetMount::create(options, std::move(*listener));
  if (!mount) return daemon.failed(mount.error(), exit_code_of(mount.error()));
  const auto served = target.serve(**mount, [&] {
    spdlog::info("target mounted at {}, listening on {}", options.mountpoint,
                 (*mount)->listen_address());
    if (const auto warning = target.security()->warning(); !warning.empty()) {
      spdlog::warn("{}", warning);
    }
  });
  return served ? ExitCode::kSuccess : daemon.failed(served.error());
}

}  // namespace

CLI::App* add_target_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "target", "Mount the directory that receives checkpoints, and listen for sources");
  TargetOptions& target = flags->target;
  add_config_option(*command);
  command->add_option("MOUNTPOINT,--mountpoint", target.mountpoint, "directory to mount on")
      ->required();
  command
      ->add_option("--listen", flags->listen_address,
                   "HOST:PORT for sources to connect to; without HOST: all addresses")
      ->check(address_problem)
      ->required();
  add_transport_options(*command, target.transport);
  add_size_option(*command, "--pool-size", target.ready_bytes,
                  "memory to keep ready ahead of need, part of the limit");
  add_size_option(*command, "--memory-limit", target.limit_bytes,
                  "memory for images (0: half of the available memory at start)");
  auto* spill_directory = command->add_option(
      "--spill-dir", target.spill_directory,
      "spill images beyond the limit to files here; without it writers get ENOSPC");
  add_size_option(*command, "--spill-limit", target.spill_limit_bytes,
                  "bytes to spill at most (0: what the disk has)")
      ->needs(spill_directory);
  auto* keep_directory = command->add_option(
      "--keep-dir", target.keep_directory,
      "keep sealed checkpoints in files here, also after the end of the daemon");
  keep_directory->type_name("DIR");
  command
      ->add_option("--keep-key", flags->keep_key,
                   "key that encrypts kept checkpoints, see ppmr keygen")
      ->type_name("FILE")
      ->needs(keep_directory);
  command
      ->add_option("--keep-count", target.keep_limits.count,
                   "kept checkpoints of a name, without the number or date at its end (0: all)")
      ->type_name("N")
      ->needs(keep_directory);
  add_time_option(*command, "--keep-age", flags->keep_age,
                  "remove older kept checkpoints, but not the newest of a name (0: never)")
      ->needs(keep_directory);
  add_size_option(*command, "--keep-size", target.keep_limits.bytes,
                  "bytes of all kept checkpoints, but not fewer than the newest of each name (0: "
                  "no limit)")
      ->needs(keep_directory);
  command->add_flag("--mlock", target.lock_memory, "never let the kernel swap images out");
  command
      ->add_flag("--consume", target.consume,
                 "free bytes once read; each file can be read once, front to back")
      ->excludes(keep_directory);
  command->add_flag("--wait-for-files", target.wait_for_files,
                    "look-up of a missing file waits until the checkpoint is complete");
  add_credential_options(*command, flags->credentials);
  command->add_flag("--allow-restart", target.allow_restart,
                    "let sources restart processes here with ppmr migrate, but none of root");
  auto* root = command->add_flag("--allow-root-restart", target.allow_root_restart,
                                 "like --allow-restart, also of root processes, containers and "
                                 "namespaces: accepted sources are root here");
  command
      ->add_option("--restart-policy", target.restart_policy,
                   "like --allow-restart, but of the processes that this file accepts")
      ->excludes(root);
  command
      ->add_option("--allow-restart-from", target.restart_peers,
                   "let only peers with this name restart processes here; can be repeated")
      ->allow_extra_args(false)
      ->take_all();
  command
      ->add_option("--state-dir", flags->state_directory, "directory for the records of migrations")
      ->capture_default_str();
  add_peer_timeout_option(*command, target.peer_timeout);
  add_mount_flags(*command, flags->daemon);
  command->callback([flags, &exit_code] {
    flags->target.allow_restart |= !flags->target.restart_peers.empty();
    flags->target.keep_limits.age =
        std::chrono::duration_cast<std::chrono::seconds>(flags->keep_age);
    exit_code = run_daemon({.name = "ppmr target",
                            .foreground = flags->daemon.foreground || flags->daemon.check,
                            .log_file = flags->daemon.check ? "" : flags->daemon.log_file},
                           [&](Daemon& daemon) { return run(daemon, *flags); });
  });
  return command;
}

}  // namespace ppmr
