// `ppmr migrate` and `ppmr evacuate`: their options and help texts.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Each function adds a subcommand, which sets `exit_code` when it has run.
void add_migrate_command(CLI::App& app, int& exit_code);
void add_evacuate_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
