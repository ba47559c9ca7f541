// What ppmr has to know of the options that a user passes on to CRIU.
#pragma once

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

// Options by their long names as the text of a configuration file (criu(8)). Errors: EINVAL for a
// value that such a file cannot hold: one with a line break, or with blanks and quotation marks.
Result<std::string> criu_configuration(const std::vector<std::string>& options);

}  // namespace ppmr
