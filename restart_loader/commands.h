// `ppmr commit`, `ppmr restart` and `ppmr status`.
#pragma once

#include <CLI/CLI.hpp>

namespace ppmr {

// Adds the three subcommands; running one sets `exit_code`.
void add_restart_commands(CLI::App& app, int& exit_code);

}  // namespace ppmr
