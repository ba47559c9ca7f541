// Runs a command in a job node: the client's side of command.h.
#pragma once

#include <chrono>
#include <functional>

#include "base/unique_fd.h"
#include "jobs/command/command.h"

namespace ppmr {

struct CommandClientOptions {
  int input = 0;   // -1: none
  int output = 1;  // not owned
  int errors = 2;
  // Called about once a second. If it returns an error, the client closes the connection, which
  // ends the command.
  std::function<Status()> check{};
};

// Blocks until the command has ended. Relays standard input, output and errors, and the signals
// that a user or a scheduler sends (INT, TERM, HUP, QUIT, USR1, USR2, CONT). Errors: why the
// command was not started; ECONNRESET when the connection to the job node is lost; that of `check`.
// Threads: the caller must be the only thread.
Result<CommandEnd> run_command_in_job_node(UniqueFd socket, const CommandRequest& request,
                                           const CommandClientOptions& options = {});

// Connects to the command port of a job node. `host`: an address, or a name in the job. Errors:
// EHOSTUNREACH for an unknown name; those of connect(2).
Result<UniqueFd> connect_to_job_node(const std::string& host, std::chrono::milliseconds timeout);

}  // namespace ppmr
