// Runs a command in a job node: the client's side of command.h.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "jobs/command/command.h"
#include "jobs/command/stream_resumption.h"

namespace ppmr {

enum class CommandNews {
  kNone,
  kRolledBack,   // the job node is in an earlier state, so that the connection is useless
  kStandsStill,  // the job node does nothing at the moment, and may go on elsewhere
};

struct CommandClientOptions {
  int input = 0;   // -1: none
  int output = 1;  // not owned
  int errors = 2;
  // Called about once a second. If it returns an error, the client closes the connection, which
  // ends the command.
  std::function<Result<CommandNews>()> check{};
  // The client of a resumable command passes nothing on while the news are kStandsStill. It calls
  // this when all that it has is passed on: another client may go on from there.
  std::function<void(const ClientState&)> stand_still{};
  // Where an earlier client was.
  std::optional<ClientState> state{};
  // For a request with a resumption: connects to the job node again. After an error the client
  // tries again, until the patience of the request has passed; EAGAIN (the job node is being
  // restored) starts this time anew.
  std::function<Result<UniqueFd>()> reconnect{};
  // Called when the client has tried for some seconds to connect again, and when it succeeds then.
  std::function<void(const std::string&)> tell{};
};

// Blocks until the command has ended. Relays standard input, output and errors, and the signals
// that a user or a scheduler sends (INT, TERM, HUP, QUIT, USR1, USR2, CONT). If the request has a
// resumption and the connection is lost, connects again, and continues every stream where it was.
// Signals that come in the meantime are sent then. Errors: why the command was not started;
// ECONNRESET when the connection to the job node is lost; ETIMEDOUT when it could not connect
// again; ESTALE when the command was ended because the client was away for too long; ENOBUFS when
// the job node was rolled back to a moment whose input is no longer kept; that of `check`. Threads:
// the caller must be the only thread.
Result<CommandEnd> run_command_in_job_node(UniqueFd socket, CommandRequest request,
                                           const CommandClientOptions& options = {});

// Connects to the command port of a job node. `host`: an address, or a name in the job. Errors:
// EHOSTUNREACH for an unknown name; those of connect(2).
Result<UniqueFd> connect_to_job_node(const std::string& host, std::chrono::milliseconds timeout);

}  // namespace ppmr
