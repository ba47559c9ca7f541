// Runs a program to its end and collects its output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct CommandOutput {
  std::string text;        // standard output and standard error
  bool succeeded = false;  // exit code 0
  std::string ending;      // for messages: "ended with exit code 1"
};

// Runs the program with /dev/null as standard input. After `patience`, kills the program and its
// descendants. Errors: those of ChildProcess::start(); ETIMEDOUT. Threads: any.
Result<CommandOutput> run_command(const std::vector<std::string>& argv,
                                  std::chrono::milliseconds patience);

// Like run_command(), but an exit code other than 0 is an error, too: ECHILD with the output.
// Returns the output.
Result<std::string> run_successfully(const std::vector<std::string>& argv,
                                     std::chrono::milliseconds patience);

}  // namespace ppmr
