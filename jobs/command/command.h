// A command that runs in a job node for a client elsewhere, as with ssh. The client is `ppmr job
// run` for the job's command, or `ppmr job rsh` for the daemons that an MPI launcher starts on the
// other nodes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// The port on every job node's address.
inline constexpr uint16_t kCommandPort = 7474;
// A directory in every job node, for its process 1 and for the servers of commands. Only the job's
// user can enter it.
inline constexpr const char* kRunDirectory = "/run/ppmr";
// The file with the job's token in every job node. Only the job's user can read it.
inline constexpr const char* kTokenFile = "/run/ppmr/token";
// The program in every job node that replaces ssh for MPI launchers.
inline constexpr const char* kRshFile = "/run/ppmr/rsh";

// How many bytes of a command's output and errors the client has.
struct OutputPositions {
  uint64_t output = 0;
  uint64_t errors = 0;
};

// How many bytes of the client's streams the job node has.
struct InputPositions {
  uint64_t input = 0;
  uint64_t input_passed_on = 0;  // bytes that the command got; the rest waits in the job node
  uint64_t signals = 0;
};

// The part of a request for a resumable command, which survives the connection of its client. On a
// new connection, the client sends the same request again, with the same ID. If the job node runs
// the command, the new connection replaces the old one. If the command has ended, the job node
// refuses. Otherwise it starts the command: a job node that was rolled back to a moment before the
// start has no trace of the command.
struct Resumption {
  std::string id;  // new_command_id(); secret like the token
  // The job node ends the command if its client is away for longer than this.
  std::chrono::seconds patience{};
  OutputPositions got{};  // the output that the client has when it sends this request
};

inline constexpr std::chrono::seconds kResumptionPatienceMax{3600};

struct CommandRequest {
  std::string token;  // proves that the client belongs to the job
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value
  std::string directory;                 // working directory of the command
  // Absent: the command ends with its connection.
  std::optional<Resumption> resumption{};
};

// How a command has ended: by a signal, or with an exit code.
struct CommandEnd {
  int exit_code = 0;
  int signal = 0;  // 0: none
  // Returns the exit code as shells report it: 128 + signal number after a signal.
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
};

std::string to_text(const CommandRequest& request);
std::string to_text(const CommandEnd& end);
std::string to_text(const InputPositions& positions);
// Parses a request. Errors: EPROTO.
Result<CommandRequest> parse_command_request(const std::string& text);
Result<CommandEnd> parse_command_end(const std::string& text);
Result<InputPositions> parse_input_positions(const std::string& text);

// Adds the variables of the node (NAME=value) to the variables of a command. A variable of the node
// replaces a variable of the command with the same name, except for LD_PRELOAD: there the libraries
// of the command follow the libraries of the node. Pure.
void add_variables(std::vector<std::string>& environment, const std::vector<std::string>& node);

// Returns 32 random hexadecimal digits.
std::string new_command_id();

// Returns whether two tokens are equal. The time that it takes does not depend on their contents.
bool equal_tokens(const std::string& left, const std::string& right);

}  // namespace ppmr
