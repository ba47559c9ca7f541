// The endpoint file has the address of a source mount's target and the names of the files with the
// credentials. `ppmr migrate` reads it to reach the target. It lies beside the control socket of
// the daemon. The daemon writes the file during its set-up and has no right to change it later. An
// answer of the daemon would be less safe: a daemon that an attacker controls could make a command
// of root open other files or append to them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"

namespace ppmr {

// Errors: the errors of the file system. The message names the file.
Status write_endpoint(const std::string& control_socket, const nlohmann::json& endpoint);
// Errors: ENOENT if the daemon is not the daemon of a source; EPROTO.
Result<nlohmann::json> read_endpoint(const std::string& control_socket);
void remove_endpoint(const std::string& control_socket);

}  // namespace ppmr
