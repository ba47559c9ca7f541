#include "daemon/command_line/mount_flags.h"

#include <CLI/CLI.hpp>

#include "daemon/command_line/credential_options.h"
#include "daemon/metrics/loopback_listener.h"

namespace ppmr {

void add_mount_flags(CLI::App& app, MountFlags& flags) {
  app.add_flag("--allow-other", flags.allow_other, "let other users access the mount");
  app.add_option("--user", flags.user,
                 "user to run as after the set-up (default: ppmr if it exists, else an unused id)");
  app.add_option("--log-file", flags.log_file, "log to this file instead of syslog");
  add_audit_option(app, flags.audit_file);
  app.add_option("--metrics", flags.metrics_address,
                 "serve metrics for Prometheus at http://ADDRESS/metrics: 127.0.0.1:PORT or "
                 "[::1]:PORT")
      ->type_name("ADDRESS")
      ->check([](const std::string& text) {
        const Status checked = check_metrics_address(text);
        return checked ? std::string() : checked.error().message;
      });
  app.add_flag("-f,--foreground", flags.foreground, "stay in the foreground");
  app.add_flag("--check", flags.check, "check the options and start nothing");
}

}  // namespace ppmr
