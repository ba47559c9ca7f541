// Reads options of a command from a file. A line is `name = value`, with the name of a long option.
//
//   # /etc/ppmr/target.conf
//   mountpoint = "/run/ppmr/in"
//   listen = "10.0.0.2:7440"
//   allow-restart = true
//   allow-peer = ["source-1", "source-2"]
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds --config to `command`. Call this before adding other options. If an option is given twice,
// the last value counts, so the command line overrides the file.
void add_config_option(CLI::App& command);

// Returns `arguments` (without the name of the program), with the lines of the configuration file
// inserted after the subcommand. Without --config it returns `arguments` unchanged. Errors: those
// of opening the file; EINVAL for a name that is not an option of the subcommand.
Result<std::vector<std::string>> with_config_file(const CLI::App& app,
                                                  std::vector<std::string> arguments);

}  // namespace ppmr
