// A command that runs in a job node for a client elsewhere, as with ssh. The client is `ppmr job
// run` for the job's command, or `ppmr job rsh` for the daemons that an MPI launcher starts on the
// other nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// The port on every job node's address.
inline constexpr uint16_t kCommandPort = 7474;
// The file with the job's token in every job node. Only the job's user can read it.
inline constexpr const char* kTokenFile = "/run/ppmr/token";
// The program in every job node that replaces ssh for MPI launchers.
inline constexpr const char* kRshFile = "/run/ppmr/rsh";

struct CommandRequest {
  std::string token;  // proves that the client belongs to the job
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value
  std::string directory;                 // working directory of the command
};

// The end of a command: by a signal, or with an exit code.
struct CommandEnd {
  int exit_code = 0;
  int signal = 0;  // 0: none
  // Returns the exit code as shells report it: 128 + signal number after a signal.
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
};

std::string to_text(const CommandRequest& request);
std::string to_text(const CommandEnd& end);
// Parses a request. Errors: EPROTO.
Result<CommandRequest> parse_command_request(const std::string& text);
Result<CommandEnd> parse_command_end(const std::string& text);

// Returns whether two tokens are equal. The time that it takes does not depend on their contents.
bool equal_tokens(const std::string& left, const std::string& right);

}  // namespace ppmr
