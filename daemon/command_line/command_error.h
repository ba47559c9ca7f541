// The error of a subcommand: message and exit code.
#pragma once

#include <string>

#include "base/exit_code.h"
#include "base/result.h"

namespace ppmr {

struct CommandError {
  ExitCode exit_code = ExitCode::kFailure;
  std::string message;
};

template <typename T>
using CommandResult = tl::expected<T, CommandError>;

inline tl::unexpected<CommandError> command_failure(ExitCode exit_code, std::string message) {
  return tl::unexpected<CommandError>(CommandError{exit_code, std::move(message)});
}

// Prints "ppmr commit: message" ("ppmr: message" without a command) to stderr, followed by the name
// of the manual section that has the remedy. With `json`, also prints one object to stdout. Returns
// the exit code as a number.
int report(const std::string& command, const CommandError& error, bool json);

}  // namespace ppmr
