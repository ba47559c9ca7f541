// The endpoint file has the address of a source mount's target and the names of the files with the
// credentials. `ppmr migrate` reads it to reach the target. The file is beside the control socket
// of the daemon. The daemon writes it during its set-up and has no right to change it later.
//
// Rejected: to request these names from the daemon. A daemon that an attacker controls could then
// make a command of root open other files, or append to them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"

namespace ppmr {

// Creates the endpoint file for this control socket. Errors: those of the file system; EEXIST. The
// message names the file.
Status write_endpoint(const std::string& control_socket, const nlohmann::json& endpoint);
// Reads the endpoint file of this control socket. Errors: ENOENT if its daemon is no source;
// EPROTO.
Result<nlohmann::json> read_endpoint(const std::string& control_socket);
void remove_endpoint(const std::string& control_socket);

}  // namespace ppmr
