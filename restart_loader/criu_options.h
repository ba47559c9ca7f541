// What ppmr has to know of the options that a user passes on to CRIU.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ppmr {

struct CriuOptions {
  bool verbosity = false;               // -v in any of its forms
  std::optional<std::string> log_file;  // -o, --log-file
  std::optional<std::string> pid_file;  // --pidfile
};

CriuOptions read_criu_options(const std::vector<std::string>& options);

}  // namespace ppmr
