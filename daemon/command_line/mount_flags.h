// The options of `ppmr source` and `ppmr target` that say how the daemon runs.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct MountFlags {
  bool allow_other = false;
  std::string user;             // to run as; empty: chosen
  std::string log_file;         // empty: syslog
  std::string audit_file;       // empty: syslog alone
  std::string metrics_address;  // empty: no metrics
  bool foreground = false;
  bool check = false;
};

// Throws CLI::ValidationError while the command line is parsed if the address of --metrics is not
// one of this machine alone.
void add_mount_flags(CLI::App& app, MountFlags& flags);

}  // namespace ppmr
