// The option --metrics of both daemons.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Throws CLI::ValidationError while the command line is parsed if the address is not one of this
// machine alone. `address` stays empty without the option.
void add_metrics_option(CLI::App& app, std::string& address);

}  // namespace ppmr
