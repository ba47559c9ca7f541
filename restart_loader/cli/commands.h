// `ppmr commit`, `restart`, `migrate`, `status` and `keygen`, and the internal subcommands of
// migrations.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommands; running one sets `exit_code`.
void add_restart_commands(CLI::App& app, int& exit_code);

}  // namespace ppmr
