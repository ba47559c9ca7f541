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
  // The client of a resumable command relays nothing while the news are kStandsStill. It calls this
  // when it has passed on all output that it has. Another client may go on from this state.
  std::function<void(const ClientState&)> stand_still{};
  // The state of an earlier client, from which this client goes on.
  std::optional<ClientState> state{};
  // Connects to the job node again; needed for a request with a resumption. After an error the
  // client tries again, until the patience of the request has passed. EAGAIN means that the job
  // node is being restored, and starts this time anew.
  std::function<Result<UniqueFd>()> reconnect{};
  // Called with a message for the user when the client has tried for some seconds to connect again,
  // and again when it has succeeded.
  std::function<void(const std::string&)> tell{};
};

// Blocks until the command has ended. Relays standard input, output and errors, and the signals
// that a user or a scheduler sends (INT, TERM, HUP, QUIT, USR1, USR2, CONT). If the request has a
// resumption and the connection is lost, connects again, continues every stream where it was, and
// sends the signals that came in the meantime. Errors: why the command was not started; ECONNRESET
// when the connection to the job node is lost; ETIMEDOUT when the client could not connect again;
// ESTALE when the job node has ended the command because the client was away for too long; ENOBUFS
// when the job node was rolled back to a moment whose input the client no longer keeps; the error
// of `check`. Threads: the caller must be the only thread.
Result<CommandEnd> run_command_in_job_node(UniqueFd socket, CommandRequest request,
                                           const CommandClientOptions& options = {});

// Connects to the command port of a job node. `host`: an address, or a name in the job. Errors:
// EHOSTUNREACH for an unknown name; those of connect(2).
Result<UniqueFd> connect_to_job_node(const std::string& host, std::chrono::milliseconds timeout);

}  // namespace ppmr
