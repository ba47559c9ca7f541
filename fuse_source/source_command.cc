#include "fuse_source/source_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/host_name.h"
#include "daemon/background/daemon.h"
#include "daemon/background/idle_clock.h"
#include "daemon/command_line/config_file.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/mount_flags.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/transport_option.h"
#include "daemon/control/endpoint_file.h"
#include "daemon/control/requests.h"
#include "daemon/data_daemon/data_daemon.h"
#include "fuse_source/pool_size.h"
#include "fuse_source/source_mount.h"
#include "processes/memory/data_threads.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

struct Flags {
  SourceOptions source;
  Credentials credentials;
  MountFlags daemon;
  std::string state_directory = "/var/lib/ppmr";
  std::chrono::seconds idle_limit{0};  // 0: the daemon stays when it is idle
  bool waits_for_target = false;
};

constexpr std::chrono::milliseconds kTargetPatience{2000};
constexpr std::chrono::seconds kBetweenTries{2};

constexpr std::chrono::seconds kIdleInterval{5};  // between two checks whether the mount is in use
// Longer than the 20 s after which the settler reports open migrations: a daemon with an open
// migration must not end.
constexpr unsigned kIdleLimitMinSeconds = 60;

// Returns the address and credentials with which `ppmr migrate` reaches the agent on the target's
// node. They are the address and credentials of this daemon.
nlohmann::json describe_endpoint(const SourceOptions& options, const Credentials& credentials,
                                 const std::string& audit_file) {
  const auto absolute = [](const std::string& path) {
    return path.empty() ? path : std::filesystem::absolute(path).string();
  };
  return {{"target", options.target_address},
          {"key_file", absolute(credentials.key_file)},
          {"tls_cert", absolute(credentials.certificate.certificate)},
          {"tls_key", absolute(credentials.certificate.private_key)},
          {"tls_ca", absolute(credentials.certificate.authority)},
          {"crl", absolute(credentials.revocation_list)},
          {"allowed_peers", credentials.allowed_peers},
          {"target_name", credentials.target_name},
          {"audit_file", absolute(audit_file)},
          {"insecure", credentials.insecure}};
}

void check(const SourceOptions& options, bool pool_size_is_given) {
  if (options.target_address.empty() && !options.discard) {
    throw CLI::RequiredError("--target HOST:PORT (or --discard)");
  }
  if (options.chunk_size_bytes < kChunkSizeMinBytes ||
      options.chunk_size_bytes > kChunkSizeMaxBytes ||
      options.chunk_size_bytes % kPageSizeBytes != 0) {
    throw CLI::ValidationError("--chunk-size",
                               std::to_string(options.chunk_size_bytes) +
                                   " bytes: must be 64 KiB to 1 MiB and a multiple of 4 KiB");
  }
  // At least two slots are needed: one receives a request while another gathers small writes.
  if (!pool_size_is_given) return;
  if (options.pool_size_bytes < 2 * options.chunk_size_bytes ||
      options.pool_size_bytes > kPoolSizeMaxBytes) {
    throw CLI::ValidationError(
        "--pool-size", format_size(options.pool_size_bytes) + ": must be at least two chunks (" +
                           format_size(2 * options.chunk_size_bytes) + ") and at most 64 GiB");
  }
}

ExitCode exit_code_of(const Error& error) {
  if (error.errno_value == ENODEV) return ExitCode::kFailure;  // no RDMA device
  const bool usage = error.errno_value == EINVAL || error.errno_value == ENOMEM ||
                     error.errno_value == EPERM;  // unencrypted to another machine
  return usage ? ExitCode::kUsage : ExitCode::kPeerFailed;
}

// Returns the options of the privileged helper, the process that does what the daemon may not do
// (see DataDaemon::start_helper()).
HelperOptions helper_options(const SourceOptions& source, const Flags& flags,
                             std::chrono::microseconds round_trip) {
  std::vector<std::string> settle;
  if (!source.discard) {
    settle = {"migration-settle", "--role=source", "--mountpoint=" + source.mountpoint,
              "--state-dir=" + std::filesystem::absolute(flags.state_directory).string()};
  }
  return {.settle = std::move(settle),
          .connect_to = source.target_address,
          .loopback_only = source.security->reach() == TcpReach::kLoopback,
          .near_target = round_trip.count() > 0 && is_near(round_trip)};
}

// Connects to the target, and writes the outcome to the audit trail.
Result<std::unique_ptr<SourceMount>> connect(const SourceOptions& options,
                                             std::unique_ptr<Connector> connector,
                                             AuditTrail& audit) {
  ConnectionEvent event{.outcome = "accepted",
                        .service = "target",
                        .address = options.target_address,
                        .peer = "",
                        .name = "",
                        .reason = ""};
  auto mount = SourceMount::create(options, std::move(connector));
  if (!mount) {
    event.outcome = "refused";
    event.reason = mount.error().message;
    audit.write(event);
  } else if (!options.discard) {
    event.peer = (*mount)->target_identity();
    audit.write(event);
  }
  return mount;
}

// Decides whether a mount is in use, from its status now and its number of bytes at the previous
// check.
class BusyLook {
 public:
  bool is_busy(const nlohmann::json& status) {
    const uint64_t bytes = std::exchange(bytes_, status.at("bytes"));
    const auto& checkpoints = status.at("checkpoints");
    const bool is_open = std::any_of(checkpoints.begin(), checkpoints.end(),
                                     [](const auto& one) { return one.at("state") == "open"; });
    const auto& protects = status.at("protected");
    // After three intervals without an epoch, `ppmr protect` counts as killed.
    const bool awaits_epoch =
        std::any_of(protects.begin(), protects.end(), [](const auto& process) {
          return process.at("age_ms") < 3 * process.at("every_ms").template get<int64_t>();
        });
    return is_open || awaits_epoch || bytes != bytes_ ||
           status.at("open_migrations").at("count") != 0;
  }

 private:
  uint64_t bytes_ = 0;
};

nlohmann::json status_of(SourceMount& mount) {
  PassedDescriptors none;
  return mount.answer(to_request(request::Status{}), none);
}

// Checks, without waiting for a connection, that the credentials allow the address of the target:
// without credentials a source reaches only this machine. A name that has no address now passes the
// check, because it may have one when the source starts.
Status check_reaching(const Security& security, const SourceOptions& options) {
  if (options.discard || security.reach() == TcpReach::kAnywhere) return {};
  const auto tried = begin_to_connect(options.target_address, security.reach(), 0);
  if (tried || tried.error().errno_value != EPERM) return {};
  return failure(EPERM, "--target: " + tried.error().message);
}

// Returns when the target answers. Until then, logs each new reason why it does not answer. Also
// reports the reason to the service manager after each attempt: otherwise the service manager would
// end a daemon that takes so long to start.
void await_target(const Daemon& daemon, const SourceOptions& options) {
  for (std::string said;;) {
    const auto answered = measure_round_trip(options.target_address, kTargetPatience);
    if (answered) return;
    const std::string& why = answered.error().message;
    if (why != said) spdlog::warn("waits for its target: {}", said = why);
    daemon.service_manager().notify("STATUS=waits for its target: " + why +
                                    "\nEXTEND_TIMEOUT_USEC=60000000");
    std::this_thread::sleep_for(kBetweenTries);
  }
}

ExitCode run(Daemon& daemon, SourceOptions options, const Flags& flags) {
  DataDaemon source(daemon,
                    {.mountpoint = options.mountpoint,
                     .flags = flags.daemon,
                     .credentials = flags.credentials,
                     .transport = options.discard ? TransportOptions{} : options.transport});
  if (auto checked = source.check(); !checked) return daemon.failed(checked.error());
  if (flags.daemon.check) {
    const Status reaches = check_reaching(*source.security(), options);
    return reaches ? ExitCode::kSuccess : daemon.failed(reaches.error(), ExitCode::kUsage);
  }
  options.mountpoint = source.mountpoint();
  options.security = source.security();
  options.sender.source_name = host_name();
  options.sender.trusted_fabric = flags.credentials.trusted_fabric;
  if (flags.idle_limit.count() > 0) {
    options.idle = std::make_shared<IdleClock>(flags.idle_limit, std::chrono::steady_clock::now());
  }
  if (auto opened = source.open(); !opened) return daemon.failed(opened.error());
  const nlohmann::json endpoint =
      describe_endpoint(options, flags.credentials, source.audit_file());
  if (Status written = write_endpoint(source.control_socket(), endpoint); !written) {
    return daemon.failed(written.error(), ExitCode::kFailure);
  }
  if (flags.waits_for_target && !options.discard) {
    await_target(daemon, options);
    daemon.service_manager().notify("STATUS=");
  }
  const auto round_trip = round_trip_to_target(options);  // connects: only before drop_rights()
  if (options.pool_size_bytes == 0) {
    options.pool_size_bytes = pool_size_for(round_trip, options.chunk_size_bytes);
  }
  auto started = source.start_helper(helper_options(options, flags, round_trip));
  if (!started) return daemon.failed(started.error());
  options.helper = source.helper();
  std::unique_ptr<Connector> connector;
  if (!options.discard) {
    auto made = options.security->connector(
        options.target_address, PeerRole::kSource,
        [helper = options.helper](size_t number) { return helper->dial(number); });
    if (!made) return daemon.failed(made.error(), exit_code_of(made.error()));
    connector = std::move(*made);
  }
  if (auto dropped = source.drop_rights(); !dropped) return daemon.failed(dropped.error());
  options.confinement = source.confinement();
  auto mount = connect(options, std::move(connector), *source.audit());
  if (!mount) return daemon.failed(mount.error(), exit_code_of(mount.error()));
  BusyLook look;
  std::optional<IdleEnd> idle_end;
  const auto served = source.serve(**mount, [&] {
    if (options.idle) {
      idle_end.emplace(
          *options.idle, kIdleInterval, [&] { return look.is_busy(status_of(**mount)); },
          [&] {
            spdlog::info("the mount was not used for {} s: ending", flags.idle_limit.count());
            (*mount)->stop();
          });
    }
    spdlog::info("source mounted at {}, streaming to {}", options.mountpoint,
                 options.discard ? "nowhere (--discard)" : options.target_address);
    if (const auto warning = options.security->warning(); !warning.empty() && !options.discard) {
      spdlog::warn("{}", warning);
    }
  });
  idle_end.reset();
  return served ? ExitCode::kSuccess : daemon.failed(served.error());
}

}  // namespace

CLI::App* add_source_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "source",
      "Mount the directory that a checkpoint tool writes into, and stream its content to a target");
  SourceOptions& source = flags->source;
  add_config_option(*command);
  command->add_option("MOUNTPOINT,--mountpoint", source.mountpoint, "the directory to mount on")
      ->required();
  auto* target = command->add_option("--target", source.target_address, "HOST:PORT of ppmr target")
                     ->check(address_problem);
  auto* discard = command->add_flag("--discard", source.discard,
                                    "discard what is written: measures aggregation alone");
  target->excludes(discard);
  add_transport_options(*command, source.transport);
  command
      ->add_option("--port", source.transport.rails.port,
                   "port on which targets connect for RDMA reads; 0: any free port")
      ->capture_default_str();
  add_size_option(*command, "--chunk-size", source.chunk_size_bytes,
                  "bytes per slot and per write request: 64KiB to 1MiB");
  const CLI::Option* pool_size = add_size_option(
      *command, "--pool-size", source.pool_size_bytes,
      "registered memory for bytes in flight (default: 64MiB, more on a long link)");
  source.sender.stream_count =
      static_cast<uint32_t>(usual_streams(std::thread::hardware_concurrency()));
  command
      ->add_option("--streams", source.sender.stream_count,
                   "number of data connections: TCP connections or RDMA queue pairs (default: half "
                   "of the processors, 2 to 8)")
      ->check(CLI::Range(1u, wire::kStreamsMax));
  command
      ->add_option_function<std::string>(
          "--compress",
          [&source](const std::string& text) {
            const auto compression = parse_compression(text);
            if (!compression) {
              throw CLI::ValidationError("--compress", compression.error().message);
            }
            source.sender.compression = *compression;
          },
          "compress what travels: lz4, or zstd (levels 1 to 19)")
      ->type_name("off|lz4|zstd[:LEVEL]")
      ->default_str("off");
  add_credential_options(*command, flags->credentials);
  command->add_option("--target-name", flags->credentials.target_name,
                      "the name that the target must have");
  command
      ->add_option("--state-dir", flags->state_directory, "directory for the records of migrations")
      ->capture_default_str();
  add_peer_timeout_option(*command, source.sender.peer_timeout);
  command
      ->add_option_function<unsigned>(
          "--idle-timeout",
          [flags](unsigned seconds) { flags->idle_limit = std::chrono::seconds(seconds); },
          "end when the mount was not used for this long; default: never")
      ->check(CLI::Range(kIdleLimitMinSeconds, 1'000'000u))
      ->type_name("SECONDS");
  command->add_flag("--wait-for-target", flags->waits_for_target,
                    "start although the target does not answer: wait until it does, and say so");
  add_mount_flags(*command, flags->daemon);
  command->callback([flags, pool_size, &exit_code] {
    check(flags->source, pool_size->count() > 0);
    exit_code = run_daemon({.name = "ppmr source",
                            .foreground = flags->daemon.foreground || flags->daemon.check,
                            .log_file = flags->daemon.check ? "" : flags->daemon.log_file},
                           [&](Daemon& daemon) { return run(daemon, flags->source, *flags); });
  });
  return command;
}

}  // namespace ppmr
