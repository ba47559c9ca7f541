// `ppmr config check`: starts each daemon with the command line of its unit, and lets it only check
// its configuration file.
#include "cli/config_command.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <utility>
#include <vector>

#include "base/spawn.h"
#include "cli/doctor/service_checks.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"

namespace ppmr {
namespace {

// Checks one file. The daemon prints the faults.
int check(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ppmr");
  const auto pid = spawn({.argv = std::move(arguments), .program = "/proc/self/exe"});
  if (!pid) return report("config", {ExitCode::kFailure, pid.error().message}, false);
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : to_int(ExitCode::kFailure);
}

}  // namespace

int ConfigCheckCommand::run() const {
  ignore_sigpipe();
  const auto chosen = files.empty() ? configuration_files(directory) : files;
  if (chosen.empty()) {
    return report(
        "config",
        {ExitCode::kUsage,
         fmt::format(
             "there is neither {0}/target.conf nor {0}/source.d/NAME.conf: the package brings "
             "the first, and /usr/share/ppmr/source.conf as a model of the others",
             directory)},
        false);
  }
  int worst = to_int(ExitCode::kSuccess);
  for (const std::string& file : chosen) {
    const auto arguments = check_arguments(file);
    if (arguments.empty()) {
      return report(
          "config",
          {ExitCode::kUsage,
           file + ": not named target.conf or to.conf, and not in a directory source.d or "
                  "protect.d: check it with `ppmr target --check --config`, or source or protect "
                  "in its place"},
          false);
    }
    const int ended = check(arguments);
    if (ended != 0) worst = ended;
    print_to(stdout, "{}: {}\n", file, ended == 0 ? "good" : "BAD, see above");
  }
  return worst;
}

}  // namespace ppmr
