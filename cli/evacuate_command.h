#pragma once

#include "cli/migrate_command.h"
#include "processes/select_processes.h"

namespace ppmr {

// Moves all trees that match, each one independently unless `together`.
struct EvacuateCommand {
  ProcessSelector selector;
  bool together = false;
  MigrateCommand migrate;  // the pids in it are ignored

  int run() const;  // returns the exit code
};

}  // namespace ppmr
