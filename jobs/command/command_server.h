// Runs one command for one client: the job node's side of command.h.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace ppmr {

// Serves the client on `socket` and returns when its command has ended. Relays the command's output
// as fast as the client takes it. When the connection ends first, kills the command's process
// group. Threads: one; the caller is a process with this one task, because it handles SIGCHLD.
void serve_command(UniqueFd socket, const std::string& token);

}  // namespace ppmr
