// `ppmr commit`, `restart`, `migrate`, `status` and `keygen`, and the internal subcommands of
// migrations.
#pragma once

#include <CLI/CLI.hpp>

namespace ppmr {

// Adds the subcommands; running one sets `exit_code`.
void add_restart_commands(CLI::App& app, int& exit_code);

}  // namespace ppmr
