// `ppmr config check`: starts each daemon with the command line of its unit, and lets it only check
// its configuration file.
#include "cli/config_command.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "base/spawn.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

// Returns target.conf, source.d/NAME.conf and protect.d/NAME.conf in the directory of the
// configuration.
std::vector<std::string> files_of_units(const fs::path& directory) {
  std::vector<std::string> files;
  std::error_code error;
  if (const fs::path target = directory / "target.conf"; fs::exists(target, error))
    files.push_back(target.string());
  for (const char* each : {"source.d", "protect.d"}) {
    for (const auto& entry : fs::directory_iterator(directory / each, error)) {
      if (entry.path().extension() == ".conf") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the command to which the file belongs; empty if the name does not show it.
std::string role_of(const fs::path& file) {
  if (file.filename() == "target.conf") return "target";
  const fs::path directory = file.parent_path().filename();
  return directory == "source.d" ? "source" : directory == "protect.d" ? "protect" : "";
}

// Checks one file. The daemon prints the faults.
int check(const std::string& role, const std::string& file) {
  const auto pid =
      spawn({.argv = {"ppmr", role, "--config", file, "--check"}, .program = "/proc/self/exe"});
  if (!pid) return report("config", {ExitCode::kFailure, pid.error().message}, false);
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : to_int(ExitCode::kFailure);
}

}  // namespace

int ConfigCheckCommand::run() const {
  ignore_sigpipe();
  const auto chosen = files.empty() ? files_of_units(directory) : files;
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
    const std::string role = role_of(fs::absolute(file));
    if (role.empty()) {
      return report(
          "config",
          {ExitCode::kUsage,
           file + ": not named target.conf and not in a directory source.d or protect.d: check it "
                  "with `ppmr target --check --config`, or source or protect in its place"},
          false);
    }
    const int ended = check(role, file);
    if (ended != 0) worst = ended;
    print_to(stdout, "{}: {}\n", file, ended == 0 ? "good" : "BAD, see above");
  }
  return worst;
}

}  // namespace ppmr
