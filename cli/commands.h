// The subcommands of ppmr except `source` and `target`: their options and help texts.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommands. A subcommand sets `exit_code` when it has run.
void add_restart_commands(CLI::App& app, int& exit_code);

}  // namespace ppmr
