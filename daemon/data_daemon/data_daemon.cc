#include "daemon/data_daemon/data_daemon.h"

#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "daemon/background/program_file.h"
#include "daemon/background/reload.h"
#include "daemon/control/endpoint_file.h"
#include "daemon/control/requests.h"
#include "daemon/metrics/daemon_metrics.h"
#include "daemon/metrics/metrics_server.h"
#include "mount/fuse_channel.h"
#include "rdma_stream/verbs/verbs_device.h"
#include "rdma_stream/verbs/verbs_fabric.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Adds the fields that both kinds of daemon report to the status.
void add_own_status(const Security& security, json& status) {
  status["program"] = describe_program();
  const auto end_s = security.ends_at_s();
  status["credentials_end_s"] = end_s ? json(*end_s) : json();
}

// Returns whether this node has RDMA devices and the options allow their use.
bool may_use_verbs(const TransportOptions& options) {
  return options.mode != TransportMode::kTcp && ::access(kVerbsDevices, F_OK) == 0;
}

// Returns the files that stay reachable: /dev/null, and RDMA devices. The daemon opens RDMA devices
// only after it has dropped its rights, because the kernel refuses commands of another user than
// the user that opened the device.
LandlockRules daemon_rules(const TransportOptions& options) {
  LandlockRules rules{.readable = {}, .writable = {"/dev/null"}};
  if (!may_use_verbs(options)) return rules;
  rules.readable.assign(std::begin(kVerbsFiles), std::end(kVerbsFiles));
  rules.writable.emplace_back(kVerbsDevices);
  return rules;
}

tl::unexpected<CommandError> failed(const Error& error, ExitCode exit_code) {
  return command_failure(exit_code, error.message);
}

// Returns the absolute path of the mount point. Makes the directory if it is missing, as systemd
// does for its mount units, unless `only_check`.
Result<std::string> find_or_make(const std::string& path, bool only_check) {
  auto mountpoint = resolve_mountpoint(path);
  if (mountpoint || mountpoint.error().errno_value != ENOENT || path.empty()) return mountpoint;
  if (only_check) return std::filesystem::absolute(path).string();
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return failure(error.value(), "make the mount point " + path + ": " + error.message());
  return resolve_mountpoint(path);
}

// Fails if the daemon could not open the log file. Does not open it, because --check must not
// change anything.
Status check_log_file(const std::string& path) {
  if (path.empty() || ::access(path.c_str(), W_OK) == 0) return {};
  const auto directory = std::filesystem::absolute(path).parent_path();
  if (errno == ENOENT && ::access(directory.c_str(), W_OK | X_OK) == 0) return {};
  tl::unexpected<Error> failed = system_failure("open log file", path);
  failed.value().message +=
      ": make the directory if it is missing (mkdir -p), or name another file";
  return failed;
}

// Fails if the daemon must use RDMA and cannot. Otherwise --check would accept a daemon that could
// not start.
Status check_rdma(const TransportOptions& transport) {
  if (transport.mode != TransportMode::kVerbs) return {};
  std::string why = "this machine has no RDMA device";
  for (const RdmaPort& port : find_rdma_ports()) {
    if (port.usable) return {};
    why = "RDMA device " + port.device + ": " + port.why_not;
  }
  return failure(ENODEV, "--transport verbs: " + why + ": see `ppmr devices`, or use auto or tcp");
}

}  // namespace

DataDaemon::DataDaemon(Daemon& daemon, DataDaemonOptions options)
    : daemon_(daemon), options_(std::move(options)) {}

DataDaemon::~DataDaemon() = default;

CommandResult<void> DataDaemon::check() {
  // Checks the mount point first, because a wrong mount point is the most common mistake.
  auto mountpoint = find_or_make(options_.mountpoint, options_.flags.check);
  if (!mountpoint) return failed(mountpoint.error(), ExitCode::kMountFailed);
  options_.mountpoint = *mountpoint;
  if (!options_.flags.check && is_dead_mount(*mountpoint)) {
    // The daemon logs this, because the privileged helper, which mounts, has no log.
    spdlog::warn("replacing the mount that a daemon left at {} when it died", *mountpoint);
  }
  auto security = Security::load(options_.credentials);
  if (!security) return failed(security.error(), ExitCode::kUsage);
  security_ = std::move(*security);
  // The daemon leaves its working directory later, so it needs the absolute path.
  std::string& audit_file = options_.flags.audit_file;
  if (!audit_file.empty()) audit_file = std::filesystem::absolute(audit_file).string();
  auto audit = AuditTrail::open(audit_file);
  if (!audit) return failed(audit.error(), ExitCode::kUsage);
  audit_ = std::move(*audit);
  auto user = choose_daemon_user(options_.flags.user);
  if (!user) return failed(user.error(), ExitCode::kUsage);
  user_ = std::move(*user);
  if (!options_.flags.check) return {};
  if (Status opens = check_log_file(options_.flags.log_file); !opens) {
    return failed(opens.error(), ExitCode::kFailure);
  }
  if (Status can = check_rdma(options_.transport); !can) {
    return failed(can.error(), ExitCode::kFailure);
  }
  return {};
}

CommandResult<void> DataDaemon::open() {
  if (!options_.flags.metrics_address.empty()) {
    auto listener = MetricsServer::listen(options_.flags.metrics_address);
    if (!listener) return failed(listener.error(), ExitCode::kFailure);
    metrics_listener_ = std::move(*listener);
  }
  ControlServerOptions control_options;
  control_options.remove = [this](const std::string& path) { remove_control_socket(path); };
  auto control = ControlServer::create(std::move(control_options));
  if (!control) return failed(control.error(), ExitCode::kFailure);
  control_ = std::move(*control);
  return {};
}

// Removes the control socket and the endpoint file. A daemon that has dropped its rights cannot
// remove them, so the helper does it.
void DataDaemon::remove_control_socket(const std::string& path) const {
  if (helper_) return helper_->remove_control_socket();
  remove_endpoint(path);
  ::unlink(path.c_str());
}

CommandResult<void> DataDaemon::start_helper(HelperOptions options) {
  options.mountpoint = options_.mountpoint;
  options.control_socket = control_->path();
  options.allow_other = options_.flags.allow_other;
  options.read_files = credential_files(options_.credentials);
  options.append_file = options_.flags.audit_file;
  options.background = !options_.flags.foreground;
  auto helper = PrivilegedHelper::start(options);
  if (!helper) return failed(helper.error(), ExitCode::kFailure);
  helper_ = std::move(*helper);
  return {};
}

CommandResult<void> DataDaemon::drop_rights() {
  const bool locks_memory = options_.locks_memory || may_use_verbs(options_.transport);
  auto confinement = confine(user_, daemon_rules(options_.transport), locks_memory);
  if (!confinement) return failed(confinement.error(), ExitCode::kFailure);
  confinement_ = std::move(*confinement);
  return {};
}

CommandResult<void> DataDaemon::serve(ServedMount& mount, const std::function<void()>& on_ready) {
  const auto answer = [&](const json& request, PassedDescriptors& passed) {
    json reply = mount.answer(request, passed);
    const bool is_status = request.is_object() && request.value("op", json()) == "status";
    if (is_status && reply.is_object()) add_own_status(*security_, reply);
    return reply;
  };
  const auto status = [&answer] {
    PassedDescriptors none;
    return answer(to_request(request::Status{}), none);
  };
  const DaemonMetrics metrics(status, mount.outcomes());
  std::unique_ptr<MetricsServer> metrics_server;
  if (metrics_listener_) {
    auto server = MetricsServer::start(std::move(metrics_listener_), metrics);
    if (!server) return failed(server.error(), ExitCode::kFailure);
    metrics_server = std::move(*server);
    spdlog::info("metrics at http://{}/metrics", options_.flags.metrics_address);
  }
  const auto open_again = [this](const std::string& path) { return helper_->open_again(path); };
  StopSignals signals([&](int) { mount.stop(); },
                      [&] { reload(daemon_, *security_, *audit_, open_again); });
  std::optional<Watchdog> watchdog;
  const auto served = mount.serve([&] {
    control_->serve([&](const json& request, const ControlClient&, PassedDescriptors& passed) {
      return answer(request, passed);
    });
    daemon_.ready();
    watchdog.emplace(daemon_.service_manager(), [&] { (void)status(); });
    on_ready();
    if (confinement_.landlock == 0) {
      spdlog::warn("files are protected by permissions only, not by Landlock: {}",
                   confinement_.landlock_why);
    }
  });
  watchdog.reset();
  mount.stop_answering();
  metrics_server.reset();
  control_.reset();  // ends its threads, because their requests use the mount
  if (!served) return failed(served.error(), ExitCode::kMountFailed);
  return {};
}

}  // namespace ppmr
