// Whether the file of a program that runs is still the one that is installed: an upgrade of the
// package restarts no daemon.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ppmr {

// Returns the version and the commit of this process, and whether its file was replaced or removed
// since it started. For the status of a daemon. Threads: any.
nlohmann::json describe_program();

// Returns what is old about the daemon with this status, for a command of this version: "runs ppmr
// X, and this is ppmr Y". Empty: nothing. Pure.
std::string describe_old_program(const nlohmann::json& status, const std::string& version);

}  // namespace ppmr
