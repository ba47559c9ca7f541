// How `ppmr migrate` reaches the target of a source mount: the target's address, and the names of
// the files with the credentials. It is in a file beside the control socket of the daemon, and not
// an answer of the daemon: the daemon writes it during its set-up and has no right to change it
// later, so that one which is taken over cannot make a command of root open or append to other
// files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"

namespace ppmr {

// Errors: of the file system. The message names the file.
Status write_endpoint(const std::string& control_socket, const nlohmann::json& endpoint);
// Errors: ENOENT if the daemon is not that of a source; EPROTO.
Result<nlohmann::json> read_endpoint(const std::string& control_socket);
void remove_endpoint(const std::string& control_socket);

}  // namespace ppmr
