// The hidden subcommands.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommands that the daemons, CRIU and `ppmr migrate` start.
void add_internal_commands(CLI::App& app, int& exit_code);

}  // namespace ppmr
