#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "migration/protect/seal_policy.h"
#include "migration/records/record_store.h"
#include "migration/source/live_rounds.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// `ppmr protect`: keeps a copy of a running process, seconds old, in the memory of another node.
struct ProtectCommand {
  int pid = 0;
  std::string pid_file;                  // the file that contains the pid as soon as it is known
  std::string container;                 // of runc
  std::string unit;                      // of systemd
  std::string name;                      // empty: name of the unit or container, or program and pid
  std::vector<std::string> mountpoints;  // source mounts, one for each partner
  std::vector<std::string> target_hosts;  // hosts, one for each partner, in place of `mountpoints`
  std::string key_file;
  std::chrono::milliseconds every{30'000};
  std::optional<std::chrono::milliseconds> mtbf;  // given: `every` follows from it
  LiveLimits limits;
  unsigned keep = 1;  // number of epochs that each partner keeps
  SealPolicy policy = SealPolicy::kAll;
  bool waits = false;        // --wait: waits for the process if it does not run yet
  bool only_checks = false;  // --check: checks only the options
  std::string state_directory = kDefaultStateDirectory;
  std::vector<std::string> criu_options;
  bool json = false;
  bool quiet = false;

  int run() const;  // returns the exit code
};

void add_protect_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
