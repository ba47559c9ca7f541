// The steps that both data daemons, `ppmr source` and `ppmr target`, take in the same order:
//
//   check()        finds mistakes of the operator, before the daemon has any effect
//   open()         opens the port of the metrics and the control socket
//   start_helper() starts the process that keeps the rights
//   drop_rights()  from here on this process has no rights
//   serve()        mounts and serves until the mount is stopped or unmounted
//
// Between these steps, each daemon takes its own: the target opens its port before it starts the
// helper, and the source connects to its target through the helper.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/audit/audit_trail.h"
#include "daemon/background/daemon.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/credential_options.h"
#include "daemon/command_line/mount_flags.h"
#include "daemon/command_line/transport_option.h"
#include "daemon/control/control_socket.h"
#include "daemon/metrics/outcome_tally.h"
#include "daemon/privilege/confinement.h"
#include "daemon/privilege/privileged_helper.h"
#include "rdma_stream/connection/security.h"

namespace ppmr {

// A mount as its daemon sees it. Threads: serve() by one; the others by any.
class ServedMount {
 public:
  virtual ~ServedMount() = default;

  // Mounts, calls `mounted`, and blocks until the mount is unmounted or stop() was called. Errors:
  // those of mounting.
  virtual Status serve(const std::function<void()>& mounted) = 0;
  virtual void stop() = 0;
  // Answers a request of the control socket. The request {"op":"status"} does not block.
  virtual nlohmann::json answer(const nlohmann::json& request, PassedDescriptors& passed) = 0;
  // Makes present and later calls of answer() return at once.
  virtual void stop_answering() = 0;
  // The results that other processes reported, for the metrics.
  virtual const OutcomeTally& outcomes() const = 0;
};

struct DataDaemonOptions {
  std::string mountpoint;
  MountFlags flags;
  Credentials credentials;
  TransportOptions transport;
  bool locks_memory = false;  // whether the daemon locks memory even without RDMA
};

// Threads: one. The caller takes each step once, in the order above, and only after the step before
// has succeeded. An error has the exit code of the daemon.
class DataDaemon {
 public:
  DataDaemon(Daemon& daemon, DataDaemonOptions options);
  ~DataDaemon();

  // Errors: kMountFailed if the mount point cannot be used; kUsage for unusable credentials, an
  // unusable audit file, or an unknown user.
  CommandResult<void> check();
  // Errors: kFailure if a socket cannot be opened.
  CommandResult<void> open();
  // Fills in the options that both daemons have in common. Errors: kFailure.
  CommandResult<void> start_helper(HelperOptions options);
  // Errors: kFailure. The process must end then: it may have lost a part of its rights.
  CommandResult<void> drop_rights();
  // Calls `on_ready` when the mount exists and the waiting parent process has been notified.
  // Errors: kMountFailed; kFailure if the metrics cannot be served.
  CommandResult<void> serve(ServedMount& mount, const std::function<void()>& on_ready);

  // Valid after check(): the absolute path of the mount point.
  const std::string& mountpoint() const { return options_.mountpoint; }
  const std::shared_ptr<Security>& security() const { return security_; }
  const std::shared_ptr<AuditTrail>& audit() const { return audit_; }
  // The absolute path of the audit file; empty: syslog only.
  const std::string& audit_file() const { return options_.flags.audit_file; }
  // Valid after open().
  const std::string& control_socket() const { return control_->path(); }
  // Valid after start_helper().
  const std::shared_ptr<PrivilegedHelper>& helper() const { return helper_; }
  // Valid after drop_rights().
  const Confinement& confinement() const { return confinement_; }

 private:
  void remove_control_socket(const std::string& path) const;

  Daemon& daemon_;
  DataDaemonOptions options_;
  DaemonUser user_;
  std::shared_ptr<Security> security_;
  std::shared_ptr<AuditTrail> audit_;
  UniqueFd metrics_listener_;
  std::shared_ptr<PrivilegedHelper> helper_;
  // This is destroyed before the helper, because the helper removes its socket.
  std::unique_ptr<ControlServer> control_;
  Confinement confinement_;
};

}  // namespace ppmr
