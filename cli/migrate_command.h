#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "daemon/command_line/command_error.h"
#include "migration/records/record_store.h"
#include "migration/source/hooks.h"
#include "migration/source/live_rounds.h"

namespace ppmr {

struct MigrateCommand {
  std::string name = "migrate";  // name of the subcommand, for error messages
  std::string id;                // of the migration; empty: a random one
  std::vector<int> pids;
  std::vector<std::string> containers;  // names of runc containers
  std::string unit;                     // a service of systemd; empty: none
  std::string mountpoint;               // the source mount; empty: the mount for `target_host`
  std::string target_host;              // --to
  std::string key_file;                 // for a mount that --to makes; empty: the default
  MoveRequest move;
  std::vector<std::string> allowed_losses;  // kLandlock
  LiveLimits limits;                        // of a live move
  bool independent = false;
  bool dry_run = false;
  unsigned jobs = 2;
  std::optional<std::chrono::milliseconds> timeout;
  std::chrono::milliseconds release_timeout{10'000};
  HookSettings hooks;
  std::string state_directory = kDefaultStateDirectory;
  std::vector<std::string> criu_options;
  bool json = false;
  bool quiet = false;  // prints only errors

  // Checks what can be checked without the target. Errors: kUsage.
  CommandResult<void> check_values() const;
  int run() const;  // returns the exit code
};

}  // namespace ppmr
