// What ppmr has to know of the options that a user passes on to CRIU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr {

struct CriuOptions {
  bool verbosity = false;               // -v in any of its forms
  std::optional<std::string> log_file;  // -o, --log-file
  std::optional<std::string> pid_file;  // --pidfile
};

CriuOptions read_criu_options(const std::vector<std::string>& options);

// Options as CRIU's RPC takes them (criu_rpc.h).
struct CriuSettings {
  std::string configuration;           // the text of a configuration file: most of them
  std::vector<std::string> externals;  // --external: such a file cannot hold a path with blanks
  uint64_t network_lock = 0;           // --network-lock, which ends CRIU 3 when such a file has it
};

// Of long options, as on a command line. Errors: EINVAL for what cannot be said in this way.
Result<CriuSettings> criu_settings(const std::vector<std::string>& options);

}  // namespace ppmr
