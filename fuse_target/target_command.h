// `ppmr target`: the daemon of a target mount.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommand. When the subcommand runs, it sets `exit_code`.
CLI::App* add_target_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
