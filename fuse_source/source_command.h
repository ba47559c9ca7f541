// `ppmr source`: the daemon of a source mount.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommand. When the subcommand runs, it sets `exit_code`.
CLI::App* add_source_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
