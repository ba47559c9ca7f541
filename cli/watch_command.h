// `ppmr status --watch` on a terminal.
#pragma once

#include <string>

namespace ppmr {

// Runs until the user types q, or until a signal or an error. Returns the exit code. An empty
// `mountpoint` stands for all mounts.
int watch_status(const std::string& mountpoint, const std::string& state_directory, bool colours);

}  // namespace ppmr
