// A command that runs in a job node for a client somewhere else, as with ssh: `ppmr job run` for
// the job's command, `ppmr job rsh` for the daemons that an MPI launcher starts on the other nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// On every job node's address.
inline constexpr uint16_t kCommandPort = 7474;
// In every job node: its job's token, readable by the job's user only.
inline constexpr const char* kTokenFile = "/run/ppmr/token";
// In every job node: a program that takes the place of ssh for MPI launchers.
inline constexpr const char* kRshFile = "/run/ppmr/rsh";

struct CommandRequest {
  std::string token;  // proves that the client belongs to the job
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value
  std::string directory;                 // the command starts there
};

// How a command ended: by a signal, or with an exit code.
struct CommandEnd {
  int exit_code = 0;
  int signal = 0;  // 0: none
  // As shells report it: 128 + signal number.
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
};

std::string to_text(const CommandRequest& request);
std::string to_text(const CommandEnd& end);
// Errors: EPROTO.
Result<CommandRequest> parse_command_request(const std::string& text);
Result<CommandEnd> parse_command_end(const std::string& text);

// Whether two tokens are equal, in a time that does not depend on their contents.
bool equal_tokens(const std::string& left, const std::string& right);

}  // namespace ppmr
