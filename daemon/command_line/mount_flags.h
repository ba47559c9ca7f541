// The options of `ppmr source` and `ppmr target` about the process of the daemon.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

struct MountFlags {
  bool allow_other = false;
  std::string user;             // the user of the daemon; empty: the daemon chooses
  std::string log_file;         // empty: syslog
  std::string audit_file;       // empty: only syslog
  std::string metrics_address;  // empty: no metrics
  bool foreground = false;
  bool check = false;
};

// Adds the options to `app`. The parser throws CLI::ValidationError if the address of --metrics is
// not a loopback address.
void add_mount_flags(CLI::App& app, MountFlags& flags);

}  // namespace ppmr
