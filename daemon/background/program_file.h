// Finds daemons that run an old program, because an upgrade of the package restarts no daemon.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ppmr {

// Returns the version and the commit of this program, and whether its file was replaced or removed
// since this process started. A daemon adds this to its status. Threads: any.
nlohmann::json describe_program();

// Returns why the daemon with this status runs an old program, for example "runs ppmr X, and this
// is ppmr Y". Empty: it does not. `version`: of this command. Pure.
std::string describe_old_program(const nlohmann::json& status, const std::string& version);

}  // namespace ppmr
