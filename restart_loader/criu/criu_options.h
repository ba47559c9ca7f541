// The options that a user passes on to CRIU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// The options on CRIU's command line that ppmr itself must take into account.
struct CriuOptions {
  bool verbosity = false;               // -v in any of its forms
  std::optional<std::string> log_file;  // -o, --log-file
  std::optional<std::string> pid_file;  // --pidfile
};

inline constexpr int kFirstInheritedFd = 4;

CriuOptions read_criu_options(const std::vector<std::string>& options);

// Options in the form that CRIU's RPC accepts (criu_rpc.h).
struct CriuSettings {
  std::string configuration;  // text of a configuration file: most options
  // Values of --external; may contain blanks, unlike values in a file.
  std::vector<std::string> externals;
  // The value of --network-lock as in rpc.proto; 0: not given. This option is not in
  // `configuration`, because CRIU 3 ends if it finds the option in a configuration file.
  uint32_t network_lock = 0;
  // --inherit-fd: "socket:[17]". The first one stands for descriptor kFirstInheritedFd of CRIU, and
  // so on.
  std::vector<std::string> inherited;
};

// Converts long options, written as on a command line. Errors: EINVAL for options that the RPC
// cannot express.
Result<CriuSettings> criu_settings(const std::vector<std::string>& options);

}  // namespace ppmr
