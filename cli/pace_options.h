// The options that bound what copying memory takes from a running process.
#pragma once

#include <CLI/CLI.hpp>

#include "migration/source/live_rounds.h"

namespace ppmr {

struct PaceOptions {
  CLI::Option* max_rate;
  CLI::Option* cpu_share;
};

// Adds --max-rate and --cpu-share for `limits`, which must live as long as `sub`.
PaceOptions add_pace_options(CLI::App& sub, LiveLimits& limits);
// Adds --slow-down.
CLI::Option* add_slow_down_option(CLI::App& sub, LiveLimits& limits);

}  // namespace ppmr
