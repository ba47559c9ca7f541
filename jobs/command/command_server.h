// Runs one command for one client: the job node's side of command.h.
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "jobs/command/command.h"

namespace ppmr {

// Serves the client on `socket` and returns when its command has ended. Relays the command's output
// as fast as the client takes it, and keeps what the client has not confirmed. If the connection
// ends before the command, kills the command's process group. For a resumable command, does this
// only when its client has been away for too long. If another process serves the command already,
// passes the connection to that process and returns. `directory`: for the sockets of resumable
// commands. Threads: one. The caller must be a process with only this task, because this function
// handles SIGCHLD.
// `environment`: variables that every command of the node has, see add_variables().
void serve_command(UniqueFd socket, const std::string& token,
                   const std::vector<std::string>& environment = {},
                   const std::string& directory = kRunDirectory);

}  // namespace ppmr
