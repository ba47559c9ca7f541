// `ppmr status --watch` on a terminal.
#pragma once

#include <string>

namespace ppmr {

// Runs until q, a signal, or an error; returns the exit code. `mountpoint`: empty: all mounts.
int watch_status(const std::string& mountpoint, const std::string& state_directory, bool colours);

}  // namespace ppmr
